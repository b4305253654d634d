"""A page to look at: `report` writes it as one file, `explore` serves it with sliders.

`answers` asks the simulator, `figures` draws with plotly, `html` puts a page together.  Nothing is loaded
from the network: plotly's script is in the page.
"""
