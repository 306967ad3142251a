#define BITNET_PATH portable
#define BITNET_PATH_NAME "portable"
#include "simd/portable.hpp"
#include "dot/portable.hpp"
#include "paths/all_kernels.hpp"

namespace bitnet {
const Path portable_path = portable::PATH;
}
