"""Parts of one softmax joined, and their gradients summed."""
