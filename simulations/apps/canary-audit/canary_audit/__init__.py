"""A small convolutional network on handwritten digits, trained by federated averaging."""
