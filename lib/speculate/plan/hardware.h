#pragma once
#include <optional>

#include "recipe/fields.h"
#include "recipe/gpu_name.h"
#include "speculate/plan/sheet_cost.h"

namespace tandem::speculate {

/// Section `bench.hardware`: the machine that is predicted for.
struct HardwareSection {
  std::optional<recipe::GpuName> card;
  std::optional<double> read_gbps, bf16_tflops;
  recipe::Fraction read_share{0.85}, compute_share{0.4};
  int gpus = 1;
  double link_gbps = 0;
  recipe::Duration all_reduce{0}, forward{0}, step{0};
  std::optional<recipe::ByteSize> memory;
  recipe::Fraction memory_share{0.9};

  template <class V>
  void fields(V& v) {
    using recipe::above;
    using recipe::at_least;
    v("card", card, "GPU whose data sheet replaces null rates");
    v("read_gbps", read_gbps, above(0).unit("GB/s"), "peak memory bandwidth");
    v("bf16_tflops", bf16_tflops, above(0).unit("TFLOP/s"), "peak rate of dense matrix products");
    v("read_share", read_share, above(0).up_to(1), "share of read_gbps that forwards reach");
    v("compute_share", compute_share, above(0).up_to(1),
      "share of bf16_tflops that forwards reach");
    v("gpus", gpus, at_least(1).up_to(1024), "number of GPUs in tensor parallelism");
    v("link_gbps", link_gbps, at_least(0).unit("GB/s"), "bandwidth between GPUs, 0 = not counted");
    v("all_reduce", all_reduce, at_least(0), "latency of an all-reduce, two per layer");
    v("forward", forward, at_least(0), "fixed time of every forward: launches and planning");
    v("step", step, at_least(0),
      "fixed time of every speculation step: sampling, verification and host work");
    v("memory", memory, at_least(0), "memory of one GPU, null = the card's");
    v("memory_share", memory_share, above(0).up_to(1), "share of GPU memory that a run may use");
  }

  /// Whether the card or the numbers give both rates.
  bool complete() const;
  MachineRates rates() const;
  /// That a run may use on one GPU; none where neither a card nor a size is given.
  std::optional<double> memory_bytes() const;
};

}  // namespace tandem::speculate
