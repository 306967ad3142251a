// A byte of the k-th largest number from the counts of that byte in all numbers that share the bytes before it.

var<workgroup> histogram: array<atomic<u32>, 256>;

struct KthByte { byte: u32, wanted: u32, here: u32 } // how many numbers with this byte are wanted, and how many there are

fn kth_byte(k: u32) -> KthByte { // for one thread
    var left = k;
    var byte = 255u;
    var here = atomicLoad(&histogram[byte]);
    while (here < left && byte > 0u) {
        left -= here;
        byte -= 1u;
        here = atomicLoad(&histogram[byte]);
    }
    return KthByte(byte, left, here);
}
