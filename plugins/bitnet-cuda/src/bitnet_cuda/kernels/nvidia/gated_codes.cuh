// Gate and up in one product: the gate, and with JOINED the outputs of a launch that also quantizes m (joined_codes.cuh).
#include "gated.cuh"
#if JOINED
#include "joined_codes.cuh"
#define CODES_OF_M , u32 *m_q, float *m_scale, int *m_qsum
#else
#define CODES_OF_M
#endif
