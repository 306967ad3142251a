#define BITNET_PATH neon_dotprod
#define BITNET_PATH_NAME "neon-dotprod"
#include "simd/neon.hpp"
#include "dot/neon.hpp"
#include "paths/all_kernels.hpp"

namespace bitnet {
const Path neon_dotprod_path = neon_dotprod::PATH;
}
