"""The record: how it is proved, checked by anybody (`verify`) and read by people (`history`)."""
