"""From a `Dataset` to a federation: who holds which example, which labels are seen, tables on
the device.
"""
