// Returns 1 / sqrt(columns) of a power of two.
float hadamard_factor(uint columns) {
    uint log_width = findMSB(columns);
    return uintBitsToFloat((127 - log_width / 2) << 23) * (log_width % 2 == 1 ? 0.70710678 : 1.0);
}
