"""From a `Dataset` to a federation: owners of examples, visible labels, and tables on the
device.
"""
