"""The read model of a store, which people look at: a function of the entries alone, made beside the
line, and made again whenever it is lost.
"""
