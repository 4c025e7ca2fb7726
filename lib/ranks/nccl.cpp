#include "ranks/nccl.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/shared_library.h"

namespace tandem::ranks {
namespace {

// What of its interface is called here; numbers and names as in nccl.h, which need not be there.
using Code = int;
constexpr int kUint8 = 1, kFloat32 = 7, kSum = 0;

struct Library {
  SharedLibrary file{
      "NCCL", "libnccl.so.2",
      "several GPUs need version 2.18 or newer: install libnccl2 (Debian, NVIDIA's repository) "
      "or nvidia-nccl-cu13 (PyPI), and add its folder to LD_LIBRARY_PATH"};
  Code (*get_version)(int* version) = file["ncclGetVersion"];
  Code (*get_id)(Nccl::Id* id) = file["ncclGetUniqueId"];
  Code (*init_rank)(void** comm, int n_ranks, Nccl::Id id, int rank) = file["ncclCommInitRank"];
  Code (*destroy)(void* comm) = file["ncclCommDestroy"];
  Code (*all_reduce)(const void* from, void* to, size_t n, int type, int op, void* comm,
                     void* stream) = file["ncclAllReduce"];
  Code (*all_gather)(const void* from, void* to, size_t n, int type, void* comm,
                     void* stream) = file["ncclAllGather"];
  const char* (*error_text)(Code code) = file["ncclGetErrorString"];
};

/// errors   kind device: not to be found
const Library& library() {
  static const Library loaded;
  return loaded;
}

void check(Code code, const char* what) {
  if (code == 0) return;
  throw make_error(ErrorKind::device, "NCCL", "{}: {}", what, library().error_text(code))
      .hint("run again with NCCL_DEBUG=INFO for details");
}

}  // namespace

Nccl::Id Nccl::new_id() {
  Id id{};
  check(library().get_id(&id), "cannot create an id for the ranks");
  return id;
}

std::string Nccl::version() {
  int v = 0;
  check(library().get_version(&v), "cannot query the version");
  return fmt::format("{}.{}.{}", v / 10'000, v / 100 % 100, v % 100);
}

Nccl::Nccl(const Id& id, int rank, int n_ranks) : rank_(rank) {
  check(library().init_rank(&comm_, n_ranks, id, rank), "cannot connect the ranks");
}

Nccl::~Nccl() { (void)library().destroy(comm_); }

void Nccl::sum(float* x, int64_t n, Stream stream) {
  check(library().all_reduce(x, x, static_cast<size_t>(n), kFloat32, kSum, comm_, stream.handle),
        "the all-reduce failed");
}

void Nccl::gather(void* all, size_t bytes, Stream stream) {
  const auto* const own = static_cast<const std::byte*>(all) + static_cast<size_t>(rank_) * bytes;
  check(library().all_gather(own, all, bytes, kUint8, comm_, stream.handle),
        "the all-gather failed");
}

}  // namespace tandem::ranks
