#include "machine/onednn_gemm.h"

#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "base/check.h"
#include "base/convert.h"
#include "base/cpu_features.h"
#include "base/parallel.h"
#include "kernels/cpu_table.h"
#include "ops/onednn.h"

namespace tandem::machine {
namespace {

using dnnl::matmul;
using dnnl::memory;

void fill_uniform(memory& m, DType dtype, int64_t count, uint32_t tensor) {
  const FillRandomParams p{.out = m.get_data_handle(),
                           .seed = 0,
                           .tensor = tensor,
                           .first = 0,
                           .count = count,
                           .stddev = 1.0f,
                           .to = dtype};
  cpu_table().fill_random(p, {0, static_cast<int>((count + kFillBlock - 1) / kFillBlock)});
}

}  // namespace

struct OneDnnGemm::State {
  double flops;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  memory x, weights, y;
  matmul primitive;
};

OneDnnGemm::OneDnnGemm(int64_t rows, int64_t out, int64_t in, DType dtype)
    : state_(std::make_unique<State>()) {
  TANDEM_CHECK(arithmetic(dtype) == dtype, "this CPU has no oneDNN GEMM in {}", dtype_name(dtype));
  const ops::onednn::Threads all(max_threads());
  State& s = *state_;
  s.flops = 2.0 * static_cast<double>(rows) * static_cast<double>(out) * static_cast<double>(in);
  const auto type = dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc x({rows, in}, type, memory::format_tag::ab);
  const memory::desc any({in, out}, type, memory::format_tag::any);
  const memory::desc y({rows, out}, type, memory::format_tag::ab);
  const matmul::primitive_desc pd(matmul::desc(x, any, y), s.engine);
  s.x = memory(x, s.engine);
  s.y = memory(y, s.engine);
  s.weights = memory(pd.weights_desc(), s.engine);
  fill_uniform(s.x, dtype, rows * in, 0);
  memory plain({{in, out}, type, memory::format_tag::ba}, s.engine);
  fill_uniform(plain, dtype, out * in, 1);
  dnnl::reorder(plain, s.weights).execute(s.stream, plain, s.weights);
  s.stream.wait();
  s.primitive = matmul(pd);
}

OneDnnGemm::~OneDnnGemm() = default;
OneDnnGemm::OneDnnGemm(OneDnnGemm&&) noexcept = default;

void OneDnnGemm::run() const {
  State& s = *state_;
  const ops::onednn::Threads all(max_threads());
  s.primitive.execute(s.stream,
                      {{DNNL_ARG_SRC, s.x}, {DNNL_ARG_WEIGHTS, s.weights}, {DNNL_ARG_DST, s.y}});
  s.stream.wait();
}

double OneDnnGemm::flops() const { return state_->flops; }

DType OneDnnGemm::arithmetic(DType dtype) {
  return dtype == DType::bf16 && isa_in_use() >= Isa::avx512_bf16 ? DType::bf16 : DType::f32;
}

const char* OneDnnGemm::name(DType dtype) {
  return arithmetic(dtype) == dtype ? "oneDNN alone" : "oneDNN alone in f32";
}

}  // namespace tandem::machine
