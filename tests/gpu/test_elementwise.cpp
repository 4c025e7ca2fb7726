#include <algorithm>

#include "gpu/device_buffer.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr DType kActs[] = {DType::f32, DType::bf16};

}  // namespace

TEST_SUITE("gpu/kernels/rms_norm") {
  TEST_CASE("agrees with the reference") {
    for (const DType act : kActs)
      for (const int dim : {1, 7, 64, 192, 1009, 4096, 20480}) {
        CAPTURE(dtype_name(act));
        CAPTURE(dim);
        constexpr int kRows = 3;
        const auto n = static_cast<size_t>(kRows * dim);
        PhiloxStream stream(1, static_cast<uint32_t>(dim));
        Buffer<float> x(n), weight(static_cast<size_t>(dim));
        fill(x, stream, 3.0f);
        fill(weight, stream, 2.0f);
        ActBuffer got(act, n), want(act, n);
        RmsNormParams p{.out = want.data(), .x = x.data(), .weight = weight.data(),
                        .n_rows = kRows, .dim = dim, .eps = 1e-5f, .act = act};
        rms_norm_ref(p, {0, kRows});
        const DeviceBuffer out(n * dtype_bytes(act)), device_x = on_device(x),
                           device_weight = on_device(weight);
        p.out = out.raw();
        p.x = device_x.as<float>();
        p.weight = device_weight.as<float>();
        cuda_table().rms_norm(p, queue().stream());
        cuda::launched("rms_norm", queue().stream());
        read_back(out, got);
        // As on the CPU: a sum in at least four chains, the root halves its error, four more operations.
        const double relative = spacing(act) + (dim / 16.0 + 4) * spacing(DType::f32);
        REQUIRE_CLOSE(got, want,
                      ([&](size_t i) { return relative * std::abs(double{want.get(i)}) + 0x1p-126; }));
      }
  }
}
