"""Which of the I2_S layouts a file has, by evidence."""
