"""`python -m analysis.recommend`."""

from analysis.recommend.command import main

main()
