// What of CUDA's driver API the sharing of memory calls, for GPUs that are not there: memory of a GPU is a memory file,
// and its addresses are this process's, so that two processes really map each other's memory. Compiled against cuda.h,
// so its structures are CUDA's. What is not mapped, or not for that access, ends the process that touches it.
//
// FAKE_CUDA_FAILS=CALL:CODE,...   these calls fail with that error
// FAKE_CUDA_HIDES=N,...           of the two GPUs these have other UUIDs
// FAKE_CUDA_APART=1               the GPUs have no peer access
#include <cuda.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {

constexpr size_t GRANULARITY = 2 << 20;
constexpr const char *MEMORY_NAME = "memory-of-a-fake-gpu";  // not one of the names by which tests find pools
constexpr int DEVICES = 2;

struct Memory {
  int fd;
  size_t size;
  int device;
  int users;  // the handle, and each mapping
};

std::mutex lock;
std::map<CUmemGenericAllocationHandle, Memory> memories;
std::map<CUdeviceptr, size_t> reserved;
std::map<CUdeviceptr, CUmemGenericAllocationHandle> mapped;
CUmemGenericAllocationHandle next_handle = 1;
thread_local int contexts = 0;

CUresult told(const char *call) {
  const char *fails = getenv("FAKE_CUDA_FAILS");
  std::string wanted = std::string(",") + (fails ? fails : "");
  size_t at = wanted.find(std::string(",") + call + ":");
  return at == std::string::npos ? CUDA_SUCCESS : CUresult(atoi(wanted.c_str() + at + strlen(call) + 2));
}

bool listed(const char *variable, int device) {
  const char *value = getenv(variable);
  return value && strchr(value, '0' + device);
}

void let_go(CUmemGenericAllocationHandle handle) {
  Memory &memory = memories.at(handle);
  if (--memory.users == 0) {
    close(memory.fd);
    memories.erase(handle);
  }
}

bool is_ours(const CUmemAllocationProp *prop) {
  return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         prop->location.id >= 0 && prop->location.id < DEVICES &&
         prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !prop->win32HandleMetaData &&
         !prop->allocFlags.compressionType && !prop->allocFlags.usage && prop->allocFlags.gpuDirectRDMACapable == 1;
}

}  // namespace

#define BEGIN(call)                                            \
  if (CUresult told_ = told(#call)) return told_;              \
  std::lock_guard<std::mutex> guard(lock)
#define NEEDS_CONTEXT \
  if (!contexts) return CUDA_ERROR_INVALID_CONTEXT

extern "C" {

// Handles, reservations and mappings that were not given back.
int fake_cuda_living() {
  std::lock_guard<std::mutex> guard(lock);
  return int(memories.size() + reserved.size() + mapped.size());
}

CUresult cuInit(unsigned int) { return told("cuInit"); }

CUresult cuGetErrorName(CUresult error, const char **name) {
  switch (error) {
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case CUDA_ERROR_INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case CUDA_ERROR_NOT_SUPPORTED: *name = "CUDA_ERROR_NOT_SUPPORTED"; break;
    default: *name = nullptr; return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  BEGIN(cuDeviceGet);
  if (ordinal < 0 || ordinal >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  BEGIN(cuDeviceGetCount);
  *count = DEVICES;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  BEGIN(cuDeviceGetUuid_v2);
  memset(uuid->bytes, listed("FAKE_CUDA_HIDES", device) ? 0xee : 0x10 + device, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice) {
  BEGIN(cuDeviceGetAttribute);
  *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
           (attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED &&
            !getenv("FAKE_CUDA_NO_DESCRIPTORS")) ||
           attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice one, CUdevice other) {
  BEGIN(cuDeviceCanAccessPeer);
  if (one == other) return CUDA_ERROR_INVALID_DEVICE;
  *can = !getenv("FAKE_CUDA_APART");
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  BEGIN(cuDevicePrimaryCtxRetain);
  *context = reinterpret_cast<CUcontext>(size_t(device) + 1);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  ++contexts;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *) {
  NEEDS_CONTEXT;
  --contexts;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *found, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags) {
  BEGIN(cuMemGetAllocationGranularity);
  if (!is_ours(prop)) return CUDA_ERROR_INVALID_VALUE;
  *found = GRANULARITY;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
  NEEDS_CONTEXT;
  BEGIN(cuMemCreate);
  if (!is_ours(prop) || flags || !size || size % GRANULARITY) return CUDA_ERROR_INVALID_VALUE;
  int fd = memfd_create(MEMORY_NAME, MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, off_t(size))) return CUDA_ERROR_OUT_OF_MEMORY;
  memories[*handle = next_handle++] = {fd, size, prop->location.id, 1};
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  BEGIN(cuMemRelease);
  if (!memories.count(handle)) return CUDA_ERROR_INVALID_VALUE;
  let_go(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *descriptor, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  NEEDS_CONTEXT;
  BEGIN(cuMemExportToShareableHandle);
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags || !memories.count(handle))
    return CUDA_ERROR_INVALID_VALUE;
  *static_cast<int *>(descriptor) = fcntl(memories[handle].fd, F_DUPFD_CLOEXEC, 0);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *descriptor,
                                        CUmemAllocationHandleType type) {
  NEEDS_CONTEXT;
  BEGIN(cuMemImportFromShareableHandle);
  int fd = int(reinterpret_cast<size_t>(descriptor));
  char link[64], name[64] = {};
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  struct stat status;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || readlink(link, name, sizeof name - 1) < 0 ||
      !strstr(name, MEMORY_NAME) || fstat(fd, &status))
    return CUDA_ERROR_INVALID_VALUE;
  memories[*handle = next_handle++] = {fcntl(fd, F_DUPFD_CLOEXEC, 0), size_t(status.st_size), 0, 1};
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
  NEEDS_CONTEXT;
  BEGIN(cuMemAddressReserve);
  if (!size || size % GRANULARITY || wanted || flags || alignment & (alignment - 1)) return CUDA_ERROR_INVALID_VALUE;
  void *found = mmap(nullptr, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t base = reinterpret_cast<size_t>(found), first = (base + alignment - 1) / alignment * alignment;
  if (first > base) munmap(found, first - base);
  munmap(reinterpret_cast<void *>(first + size), base + alignment - first);
  reserved[*address = first] = size;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  NEEDS_CONTEXT;
  BEGIN(cuMemAddressFree);
  auto at = reserved.find(address);
  if (at == reserved.end() || at->second != size || mapped.count(address)) return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void *>(address), size);
  reserved.erase(at);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  NEEDS_CONTEXT;
  BEGIN(cuMemMap);
  auto at = reserved.find(address);
  auto memory = memories.find(handle);
  if (at == reserved.end() || at->second != size || memory == memories.end() || memory->second.size != size ||
      offset || flags || mapped.count(address))
    return CUDA_ERROR_INVALID_VALUE;
  if (mmap(reinterpret_cast<void *>(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->second.fd, 0) ==
      MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  mapped[address] = handle;
  ++memory->second.users;
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *desc, size_t count) {
  NEEDS_CONTEXT;
  BEGIN(cuMemSetAccess);
  if (!mapped.count(address) || reserved[address] != size || count != 1 ||
      desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE || desc->location.id < 0 || desc->location.id >= DEVICES)
    return CUDA_ERROR_INVALID_VALUE;
  bool writes = desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (!writes && (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READ || getenv("FAKE_CUDA_NO_READ_ONLY")))
    return CUDA_ERROR_NOT_SUPPORTED;
  mprotect(reinterpret_cast<void *>(address), size, writes ? PROT_READ | PROT_WRITE : PROT_READ);
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  NEEDS_CONTEXT;
  BEGIN(cuMemUnmap);
  auto at = mapped.find(address);
  if (at == mapped.end() || reserved[address] != size) return CUDA_ERROR_INVALID_VALUE;
  mmap(reinterpret_cast<void *>(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
       0);
  let_go(at->second);
  mapped.erase(at);
  return CUDA_SUCCESS;
}

}  // extern "C"
