// What the front end of cuDNN asks CUDA's runtime before it plans an attention. A compute capability stands at 360 bytes of
// cudaDeviceProp, in CUDA 12 and 13.
static int capability;
void describe(int version) { capability = version; }
int cudaGetDevice(int* device) { *device = 0; return 0; }
int cudaGetLastError(void) { return 0; }
const char* cudaGetErrorString(int error) { return "there is no device"; }
int cudaGetDeviceProperties(char* properties, int device) {
    *(int*)(properties + 360) = capability / 100; *(int*)(properties + 364) = capability % 100 / 10;
    return 0;
}
