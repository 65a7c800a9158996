"""A diagnosis from 30 measurements of cells, learnt by three hospitals of unequal size."""
