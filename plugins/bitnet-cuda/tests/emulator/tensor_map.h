// What the emulator's driver makes of a tensor map, and its copies read.
#pragma once
struct TensorMap {
    unsigned long long address, strides[4];
    unsigned rank, dims[4], box[4];
};
