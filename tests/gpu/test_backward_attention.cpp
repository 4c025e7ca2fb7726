#include <algorithm>
#include <cmath>
#include <cstring>

#include "gpu/device_buffer.h"
#include "kernels/attention_backward_case.h"
#include "worst.h"

using namespace tandem;
using namespace tandem::test;
using cuda::GpuIsa;

namespace {

/// The bodies that this GPU runs: the portable one, and Hopper's there.
std::vector<GpuIsa> bodies() {
  std::vector<GpuIsa> all = {GpuIsa::portable};
  if (cuda::gpu().isa == GpuIsa::hopper && cuda_table().attention_backward.has_hoppers())
    all.push_back(GpuIsa::hopper);
  return all;
}

/// A case's arrays in device memory. `more_rows`: of q, dout, out and lse behind the documents,
/// holding NaN.
class OnDevice {
 public:
  explicit OnDevice(AttentionBackwardCase& c, int more_rows = 0)
      : n_rows_(c.n_rows + more_rows),
        longest_(*std::max_element(c.lengths.begin(), c.lengths.end())),
        q_(with_more(c, c.q, more_rows)),
        k_(on_device(c.k)),
        v_(on_device(c.v)),
        dout_(with_more(c, c.dout, more_rows)),
        out_(with_more(c, c.out, more_rows)),
        lse_(with_more(c.lse, static_cast<size_t>(more_rows * c.hq))),
        table_(c.table),
        slot_(c.slot),
        row_begin_(c.row_begin),
        dqkv_(c.gradients() * dtype_bytes(c.act)),
        workspace_(attention_backward_cuda_workspace_bytes(n_rows_, c.hq, c.hkv, c.d, c.act)),
        params_(c.params(c.q)) {
    params_.dqkv = dqkv_.raw();
    params_.dout = dout_.raw();
    params_.out = out_.raw();
    params_.lse = lse_.as<float>();
    params_.q = q_.raw();
    params_.k_pool = k_.raw();
    params_.v_pool = v_.raw();
    params_.page_table = table_.as<int32_t>();
    params_.slot = slot_.as<int32_t>();
    params_.row_begin = row_begin_.as<int32_t>();
  }

  void run(GpuIsa isa) const { run(isa, params_, n_rows_, longest_); }
  std::vector<unsigned char> bytes() const { return dqkv_.vector<unsigned char>(); }
  ActBuffer gradients(const AttentionBackwardCase& c) const {
    ActBuffer got(c.act, c.gradients());
    read_back(dqkv_, got);
    return got;
  }

  /// Documents [begin, begin + n) alone, as a separate call.
  void run_some(GpuIsa isa, const AttentionBackwardCase& c, size_t begin, size_t n) const {
    std::vector<int32_t> rows(c.row_begin.begin() + std::ptrdiff_t(begin),
                              c.row_begin.begin() + std::ptrdiff_t(begin + n + 1));
    const auto first = static_cast<size_t>(rows[0]), d = static_cast<size_t>(c.d),
               hq = static_cast<size_t>(c.hq), bytes = dtype_bytes(c.act);
    for (int32_t& row : rows) row -= static_cast<int32_t>(first);
    const DeviceBuffer of_rows(rows);
    const auto skip = [&](const void* at, size_t vectors) {
      return static_cast<const char*>(at) + first * vectors * d * bytes;
    };
    AttentionBackwardParams p = params_;
    p.dqkv = const_cast<char*>(skip(p.dqkv, hq + 2 * static_cast<size_t>(c.hkv)));
    p.dout = skip(p.dout, hq);
    p.out = skip(p.out, hq);
    p.q = skip(p.q, hq);
    p.lse += first * hq;
    p.slot += begin;
    p.row_begin = of_rows.as<int32_t>();
    p.n_seqs = static_cast<int>(n);
    run(isa, p, rows.back(), longest_);
    queue().wait();
  }
  const DeviceBuffer& dqkv() const { return dqkv_; }

 private:
  void run(GpuIsa isa, const AttentionBackwardParams& p, int n_rows, int longest) const {
    cuda_table().attention_backward.body(isa)(
        p, {.n_rows = n_rows, .max_rows_a_seq = longest, .workspace = workspace_.raw()},
        queue().stream());
    cuda::launched("attention_backward", queue().stream());
  }
  static DeviceBuffer with_more(const AttentionBackwardCase& c, ActBuffer& of, int more_rows) {
    const size_t offset = c.act == DType::f32 ? of.f32.offset : of.half.offset;
    ActBuffer all(c.act, of.size() + static_cast<size_t>(more_rows * c.hq * c.d), offset);
    for (size_t i = 0; i < all.size(); ++i)
      all.set(i, i < of.size() ? of.get(i) : std::numeric_limits<float>::quiet_NaN());
    return on_device(all);
  }
  static DeviceBuffer with_more(std::vector<float> of, size_t more) {
    of.resize(of.size() + more, std::numeric_limits<float>::quiet_NaN());
    return DeviceBuffer(of);
  }

  int n_rows_, longest_;
  DeviceBuffer q_, k_, v_, dout_, out_, lse_, table_, slot_, row_begin_, dqkv_, workspace_;
  AttentionBackwardParams params_;
};

/// Of one of the three gradients: how far all of it is off, and what an element may be.
struct Closeness {
  double dot = 0, got = 0, want = 0, error = 0;
  size_t n = 0;
  void add(double a, double b) {
    dot += a * b;
    got += a * a;
    want += b * b;
    error += (a - b) * (a - b);
    ++n;
  }
  double rms() const { return std::sqrt(want / static_cast<double>(n)); }
};

void check_f32(const AttentionBackwardCase& c, ActBuffer& got, ActBuffer& want) {
  double largest = 0;
  for (size_t i = 0; i < want.size(); ++i) largest = worse(largest, std::abs(double{want.get(i)}));
  // As on the CPU: errors add up like a random walk.
  const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  const double n = longest * c.hq / c.hkv + c.d;
  REQUIRE_CLOSE(got, want, ([&](size_t i) {
                  return kF32 * std::abs(double{want.get(i)}) +
                         16 * std::sqrt(n) * kF32 * (largest + 1);
                }));
}

/// Shares and their gradients are rounded to bf16 before they meet the columns: each term of a sum
/// is off by up to 2^-8 of itself, either way. As the terms of a vector's elements are alike in
/// size and their signs random, the error's deviation is about 0.4 * 2^-8 of the vector's root mean
/// square; an element of millions gets ten of them. Where a vector cancels, the tensor's own mean
/// stands for what has cancelled; where dout v - D does, f32's rounding of sums of d products is
/// left, times q (up to 4) of all heads. Then the result is rounded.
void check_bf16(const AttentionBackwardCase& c, ActBuffer& got, ActBuffer& want) {
  const auto d = static_cast<size_t>(c.d), hq = static_cast<size_t>(c.hq),
             hkv = static_cast<size_t>(c.hkv), vectors = hq + 2 * hkv;
  const auto tensor_of = [&](size_t vector) {
    const size_t head = vector % vectors;
    return head < hq ? 0u : head < hq + hkv ? 1u : 2u;
  };
  Closeness tensors[3];
  for (size_t i = 0; i < want.size(); ++i)
    tensors[tensor_of(i / d)].add(double{got.get(i)}, double{want.get(i)});
  // Of rows that see one key the gradients of q and k are 0 but for rounding.
  const bool alone = c.window == 1 || c.n_rows == static_cast<int>(c.lengths.size());
  for (const Closeness& t : tensors) {
    CAPTURE(&t - tensors);
    if (alone && &t != &tensors[2]) continue;
    REQUIRE(t.dot / std::sqrt(t.got * t.want) > 0.999);
    REQUIRE(std::sqrt(t.error / t.want) < 2e-2);
  }
  std::vector<double> rms(want.size() / d);
  for (size_t v = 0; v < rms.size(); ++v) {
    Closeness own;
    for (size_t i = v * d; i < (v + 1) * d; ++i) own.add(0, double{want.get(i)});
    rms[v] = d < 64 ? tensors[tensor_of(v)].rms() : own.rms();  // few are no sample
  }
  const double f32 = 16 * std::sqrt(static_cast<double>(d)) * kF32 * 4 * c.hq;
  REQUIRE_CLOSE(got, want, ([&](size_t i) {
                  return 0x1p-7 * std::abs(double{want.get(i)}) +
                         0x1p-8 * (4 * rms[i / d] + tensors[tensor_of(i / d)].rms()) + f32;
                }));
}

struct Shape {
  int hq, hkv, d;
};

void check(DType act, Shape s, int window, const std::vector<int>& lengths, size_t offset = 0,
           int more_rows = 0) {
  CAPTURE(dtype_name(act));
  CAPTURE(s.hq);
  CAPTURE(s.hkv);
  CAPTURE(s.d);
  CAPTURE(window);
  CAPTURE(lengths.size());
  CAPTURE(lengths[0]);
  CAPTURE(offset);
  AttentionBackwardCase c(act, s.hq, s.hkv, s.d, window, lengths, offset, 4.0f);
  ActBuffer want = c.reference();
  const OnDevice device(c, more_rows);
  for (const GpuIsa isa : bodies()) {
    CAPTURE(static_cast<int>(isa));
    device.dqkv().poison();
    device.run(isa);
    ActBuffer got = device.gradients(c);
    act == DType::f32 ? check_f32(c, got, want) : check_bf16(c, got, want);
  }
}

constexpr DType kTypes[] = {DType::bf16, DType::f32};

}  // namespace

TEST_SUITE("gpu/kernels/attention_backward") {
  TEST_CASE("documents of every length around a tile agree with the reference") {
    for (const DType act : kTypes)
      for (const int d : {128, 64, 256})
        for (const std::vector<int>& lengths :
             {std::vector<int>{1}, {2}, {63}, {64}, {65}, {127}, {128}, {129}, {200}, {300, 5}})
          check(act, {2, 1, d}, 0, lengths);
  }

  TEST_CASE("heads, widths and windows agree with the reference") {
    for (const DType act : kTypes)
      for (const Shape s : {Shape{1, 1, 128},
                            {8, 2, 128},
                            {8, 1, 64},
                            {4, 4, 64},
                            {6, 2, 80},
                            {4, 1, 96},
                            {4, 2, 256},
                            {6, 2, 256},
                            {2, 2, 256},
                            {8, 8, 2},
                            {3, 1, 34},
                            {2, 1, 130}})
        for (const int window : {0, 1, 40, 64, 100, 129, 1000})
          check(act, s, window, {65, 200, 1, 130});
  }

  TEST_CASE("packed documents, short and long, agree with the reference") {
    for (const DType act : kTypes)
      for (const int d : {128, 64, 256})
        check(act, {4, 1, d}, 0, {1000, 1, 63, 64, 65, 200, 2, 333});
  }

  TEST_CASE("rows after the documents, whatever they hold, and any address of pairs") {
    for (const DType act : kTypes)
      for (const int d : {128, 64, 80, 256})
        for (const size_t offset : {size_t{0}, size_t{2}})
          check(act, {4, 2, d}, 0, {70, 129, 30}, offset, 100);
  }

  TEST_CASE("the same bits on every run and in a graph") {
    for (const DType act : kTypes)
      for (const int d : {128, 64, 256}) {
        AttentionBackwardCase c(act, 4, 2, d, 0, {300, 41, 129}, 0, 4.0f);
        const OnDevice device(c);
        for (const GpuIsa isa : bodies())
          for (int i = 0; i < 5; ++i)
            require_same_in_graph(device.dqkv(), [&] { device.run(isa); });
      }
  }

  TEST_CASE(
      "short documents, whose tiles lack rows of the second group, have the same bits again") {
    std::vector<int> lengths;
    for (int i = 0; i < 150; ++i) lengths.push_back(20 + i * 7 % 45 + (i % 3 == 0 ? 128 : 0));
    for (const int d : {64, 128}) {
      AttentionBackwardCase c(DType::bf16, 9, 3, d, 0, lengths, 0, 4.0f);
      ActBuffer want = c.reference();
      const OnDevice device(c);
      for (const GpuIsa isa : bodies()) {
        device.run(isa);
        ActBuffer first = device.gradients(c);
        check_bf16(c, first, want);
        for (int i = 0; i < 40; ++i) {
          device.dqkv().poison();
          device.run(isa);
          ActBuffer again = device.gradients(c);
          REQUIRE(std::memcmp(again.data(), first.data(), first.size() * sizeof(bf16)) == 0);
        }
      }
    }
  }

  TEST_CASE("a document has the same bits whatever documents are with it") {
    for (const DType act : kTypes)
      for (const int d : {128, 64, 80, 256})
        for (const int window : {0, 100}) {
          AttentionBackwardCase c(act, 4, 2, d, window, {130, 1, 300, 64, 77}, 0, 4.0f);
          const OnDevice device(c);
          for (const GpuIsa isa : bodies()) {
            device.run(isa);
            const auto want = device.bytes();
            device.dqkv().poison();
            device.run_some(isa, c, 0, 2);
            device.run_some(isa, c, 2, 1);
            device.run_some(isa, c, 3, 2);
            CHECK(device.bytes() == want);
          }
        }
  }
}
