"""Softmax regression on handwritten digits, for a deployment in which nodes and servers fail."""
