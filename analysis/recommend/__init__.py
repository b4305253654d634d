"""Which policy and which settings of it serve given traffic fastest on given hardware."""
