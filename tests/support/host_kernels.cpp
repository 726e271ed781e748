// What stands for CUDA where a kernel's text, kernel.cu, is compiled for the host: blocks run one after another, and the threads of a
// block too, unless TOGETHER is defined; then each is a thread of the host. Functions are declared, not included: compilers are quick
// where headers are not.
#define __global__
#define __device__
#define __shared__ static
extern "C" {
    float fmaxf(float, float); float fminf(float, float); float expf(float); float powf(float, float);
    float fabsf(float); float erff(float); float tanhf(float); float sqrtf(float); float logf(float);
    float log1pf(float); float expm1f(float); float rintf(float); float fmodf(float, float); float acosf(float);
    float acoshf(float); float asinf(float); float asinhf(float); float atanf(float); float atanhf(float); float ceilf(float);
    float cosf(float); float coshf(float); float floorf(float); float sinf(float); float sinhf(float); float tanf(float);
    void* memcpy(void*, const void*, unsigned long);
}
struct Dim { unsigned int x; };
static thread_local Dim threadIdx, blockIdx;
static Dim blockDim;
#define SMID(sm) sm = blockIdx.x % 4u
static inline float __int_as_float(int bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline int __float_as_int(float value) { int bits; memcpy(&bits, &value, 4); return bits; }
#define HALF_TO_FLOAT(value, from) { _Float16 half; memcpy(&half, &from, 2); value = (float)half; }
#define FLOAT_TO_HALF(to, value) { const _Float16 half = (_Float16)value; memcpy(&to, &half, 2); }
static inline long long clock64() { static long long cycles; return cycles += 1000; }

#ifdef TOGETHER
#include <pthread.h>
static pthread_barrier_t barrier;
static inline void __syncthreads() { pthread_barrier_wait(&barrier); }
// Threads of a warp meet as those of a block do, since kernels have all of them shuffle.
static float lanes[1024];
static inline float __shfl_xor_sync(unsigned int, float value, int other) {
    lanes[threadIdx.x] = value;
    __syncthreads();
    const float found = lanes[threadIdx.x ^ other];
    __syncthreads();
    return found;
}
#endif

#include "kernel.cu"  // ends with a definition of CALL, the kernel called with the arguments in the array a

#ifdef TOGETHER
struct Share { unsigned int blocks, thread; void** a; };
static void* work(void* given) {
    Share* share = (Share*)given; void** a = share->a;
    threadIdx.x = share->thread;
    for (unsigned int block = 0; block < share->blocks; ++block) { blockIdx.x = block; CALL; __syncthreads(); }
    return 0;
}
extern "C" void run(unsigned int blocks, unsigned int threads, void** a) {
    blockDim.x = threads;
    pthread_barrier_init(&barrier, 0, threads);
    pthread_t all[1024]; Share shares[1024];
    for (unsigned int t = 0; t < threads; ++t) {
        shares[t] = Share{blocks, t, a}; pthread_create(&all[t], 0, work, &shares[t]);
    }
    for (unsigned int t = 0; t < threads; ++t) pthread_join(all[t], 0);
    pthread_barrier_destroy(&barrier);
}
#else
extern "C" void run(unsigned int blocks, unsigned int threads, void** a) {
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) { CALL; }
}
#endif
