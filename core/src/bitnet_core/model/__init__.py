"""What a model is: shape, weights in host memory, rotary table, and the face that every kind of model file shows."""
