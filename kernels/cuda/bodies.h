#pragma once
#include "kernels/cuda/gpu.h"

namespace tandem::cuda {

/// In the place of a portable body: a library does the operation, and ops calls no body of ours.
struct ByLibrary {
  const char* name;
};

/// The bodies of an operation, of which a call runs the one for the GPU in use. Every operation has
/// a portable body, or it does not compile.
template <class Signature>
class Bodies;

template <class R, class... Args>
class Bodies<R(Args...)> {
 public:
  using Body = R (*)(Args...);

  consteval Bodies(Body of_any, Body of_hopper = nullptr) : portable_(of_any), hopper_(of_hopper) {
    if (of_any == nullptr) throw "an operation needs a portable body";
  }
  consteval Bodies(ByLibrary elsewhere, Body of_hopper)
      : library_(elsewhere.name), hopper_(of_hopper) {}

  R operator()(Args... args) const { return body(gpu().isa)(args...); }

  Body body(GpuIsa isa) const {
    return isa == GpuIsa::hopper && hopper_ != nullptr ? hopper_ : portable_;
  }
  /// Whether a GPU of this kind has a body of ours; false only where a library takes its place.
  bool has(GpuIsa isa) const { return body(isa) != nullptr; }
  /// Whether Hopper has a separate one.
  bool has_hoppers() const { return hopper_ != nullptr; }
  /// The library in place of the portable body, or null.
  const char* library() const { return library_; }

 private:
  Body portable_ = nullptr;
  const char* library_ = nullptr;
  Body hopper_;
};

}  // namespace tandem::cuda
