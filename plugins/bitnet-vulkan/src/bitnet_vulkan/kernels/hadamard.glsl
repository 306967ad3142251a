// The Walsh-Hadamard transform of WIDTH columns in shared memory, H[i, j] = (-1)^popcount(i & j), without its factor:
// each step adds and subtracts elements `distance` apart, then doubles the distance. Starts and ends with a barrier.
shared float v[WIDTH];

void hadamard() {
    uint distance = 1;
    for (; 4 * distance <= WIDTH; distance *= 4) {
        barrier();
        for (uint i = LID; i < WIDTH / 4; i += GROUP) {
            uint at = 3 * (i & ~(distance - 1)) + i;
            float a = v[at] + v[at + distance], b = v[at] - v[at + distance];
            float c = v[at + 2 * distance] + v[at + 3 * distance], d = v[at + 2 * distance] - v[at + 3 * distance];
            v[at] = a + c;
            v[at + distance] = b + d;
            v[at + 2 * distance] = a - c;
            v[at + 3 * distance] = b - d;
        }
    }
    barrier();
    for (uint i = LID; distance < WIDTH && i < WIDTH / 2; i += GROUP) {  // the last distance alone
        float a = v[i], b = v[i + distance];
        v[i] = a + b;
        v[i + distance] = a - b;
    }
    barrier();
}
