// Places of the eight elements of an invocation in a 16 x 16 matrix of sums, or of f16 on the left: two neighbours of
// its row, two more eight columns on, and the same eight rows below. This is the layout of NVIDIA's drivers; Vulkan
// does not specify it, and no other device is offered matrix kernels.
const uint ELEMENTS = 8;
#define ROW(E) (gl_SubgroupInvocationID / 4 + (E) / 4 * 8)
#define COLUMN(E) (gl_SubgroupInvocationID % 4 * 2 + (E) % 2 + (E) / 2 % 2 * 8)
