// Backward kernels, the optimizer and parts of weights beside their references.
#include <algorithm>
#include <cmath>

#include "gpu/device_buffer.h"
#include "kernels/elementwise_case.h"
#include "kernels/rope_case.h"
#include "kernels/row_norms_case.h"
#include "ops/backward.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr double kF32 = 0x1p-23;

ActBuffer random_numbers(DType type, size_t n, float range, uint32_t seed) {
  ActBuffer b(type, n);
  PhiloxStream stream(31, seed);
  fill(b, stream, range);
  return b;
}

float* floats(ActBuffer& b) { return static_cast<float*>(b.data()); }

void launched(const char* operation) { cuda::launched(operation, queue().stream()); }

}  // namespace

TEST_SUITE("gpu/kernels/backward") {
  TEST_CASE("rms_norm_backward agrees with the reference") {
    constexpr int kRows = 3;
    const std::vector<int32_t> listed = {2, 0};
    for (const DType act : kActs)
      for (const int dim : {1, 2, 7, 64, 1009, 2052, 4096, 5120, 8192, 16384, 20481})
        for (const bool some : {false, true}) {
          CAPTURE(dtype_name(act));
          CAPTURE(dim);
          CAPTURE(some);
          const auto n = static_cast<size_t>(kRows * dim);
          ActBuffer dy = random_numbers(act, n, 1, 1), x = random_numbers(act, n, 3, 2),
                    weight = random_numbers(DType::f32, static_cast<size_t>(dim), 2, 3),
                    want = random_numbers(DType::f32, n, 1, 4), got = want;
          std::vector<float> inverse(kRows);
          RmsNormBackwardParams p{.dx = floats(want),
                                  .dy = dy.data(),
                                  .x = x.data(),
                                  .weight = floats(weight),
                                  .n_rows = some ? 2 : kRows,
                                  .dim = dim,
                                  .eps = 1e-2f,
                                  .dy_type = act,
                                  .x_type = act,
                                  .rows = some ? listed.data() : nullptr,
                                  .inverse = inverse.data(),
                                  .scale = some ? 0.6f : 1.0f};
          rms_norm_backward_ref(p, {0, p.n_rows});
          const DeviceBuffer dx = on_device(got), of_dy = on_device(dy), of_x = on_device(x),
                             of_weight = on_device(weight), rows(listed), scales(inverse);
          p.dx = dx.as<float>();
          p.dy = of_dy.raw();
          p.x = of_x.raw();
          p.weight = of_weight.as<float>();
          p.rows = some ? rows.as<int32_t>() : nullptr;
          p.inverse = scales.as<float>();
          cuda_table().rms_norm_backward(p, queue().stream());
          launched("rms_norm_backward");
          read_back(dx, got);
          // As of the CPU's variants: sums of dim terms in many chains, ten operations.
          const double most = *std::ranges::max_element(inverse);
          REQUIRE_CLOSE(got, want,
                        ([&](size_t) { return (10 + dim / 8.0) * kF32 * (1 + 8 * most); }));
          const auto of_gpu = scales.vector<float>();
          for (size_t r = 0; r < static_cast<size_t>(p.n_rows); ++r)
            REQUIRE(of_gpu[r] == doctest::Approx(inverse[r]).epsilon((4 + dim / 8.0) * kF32));
        }
  }

  TEST_CASE("without a weight dy is added to dx times the scale") {
    for (const DType act : kActs) {
      constexpr int kRows = 3, kDim = 1009;
      ActBuffer dy = random_numbers(act, kRows * kDim, 1, 1),
                want = random_numbers(DType::f32, kRows * kDim, 1, 4), got = want;
      RmsNormBackwardParams p{.dx = floats(want),
                              .dy = dy.data(),
                              .x = dy.data(),
                              .weight = nullptr,
                              .n_rows = kRows,
                              .dim = kDim,
                              .eps = 0,
                              .dy_type = act,
                              .x_type = act,
                              .scale = 0.6f};
      rms_norm_backward_ref(p, {0, kRows});
      const DeviceBuffer dx = on_device(got), of_dy = on_device(dy);
      p.dx = dx.as<float>();
      p.dy = p.x = of_dy.raw();
      cuda_table().rms_norm_backward(p, queue().stream());
      launched("rms_norm_backward");
      read_back(dx, got);
      REQUIRE_CLOSE(got, want, ([](size_t) { return 4 * kF32; }));
    }
  }

  TEST_CASE("row_norms_backward agrees with the reference") {
    for (const DType act : kActs)
      for (const int head : {2, 7, 16, 130}) {
        CAPTURE(dtype_name(act));
        CAPTURE(head);
        RowNormsCase c(act, head, 0);
        ActBuffer want = random_numbers(act, c.in.size(), 1, 19), got = want;
        std::vector<float> dnorms(static_cast<size_t>(c.kRows * (c.q + c.kv)));
        RowNormsBackwardParams p{.dqkv = want.data(),
                                 .qkv = c.in.data(),
                                 .q_norm = c.q_norm.data(),
                                 .k_norm = c.k_norm.data(),
                                 .dnorms = dnorms.data(),
                                 .n_rows = c.kRows,
                                 .q_dim = c.q,
                                 .kv_dim = c.kv,
                                 .eps = 0.01f,
                                 .act = act};
        row_norms_backward_ref(p, {0, c.kRows});
        const DeviceBuffer dqkv = on_device(got), qkv = on_device(c.in),
                           q_norm = on_device(c.q_norm), k_norm = on_device(c.k_norm),
                           of_norms(dnorms.size() * sizeof(float));
        p.dqkv = dqkv.raw();
        p.qkv = qkv.raw();
        p.q_norm = q_norm.as<float>();
        p.k_norm = k_norm.as<float>();
        p.dnorms = of_norms.as<float>();
        cuda_table().row_norms_backward(p, queue().stream());
        launched("row_norms_backward");
        read_back(dqkv, got);
        const double f32 = (10 + c.q / 8.0) * kF32 * 10;
        REQUIRE_CLOSE(got, want, ([&](size_t i) {
                        return spacing(act) * std::abs(double{want.get(i)}) + f32;
                      }));
        const auto of_gpu = of_norms.vector<float>();
        for (size_t i = 0; i < dnorms.size(); ++i)
          REQUIRE(std::abs(double{of_gpu[i]} - double{dnorms[i]}) <= f32);
      }
  }

  TEST_CASE("column_sums agree with the reference") {
    for (const DType act : kActs)
      for (const int dim : {1, 31, 33, 256, 4096})
        for (const int rows : {1, 15, 300}) {
          CAPTURE(dtype_name(act));
          CAPTURE(dim);
          CAPTURE(rows);
          const auto n = static_cast<size_t>(rows * dim), width = static_cast<size_t>(dim);
          ActBuffer dy = random_numbers(act, n, 1, 5), x = random_numbers(act, n, 1, 6),
                    scale = random_numbers(DType::f32, static_cast<size_t>(rows), 1, 7);
          std::vector<int32_t> order(static_cast<size_t>(rows));
          for (size_t r = 0; r < order.size(); ++r)
            order[r] = static_cast<int32_t>(order.size() - 1 - r);
          const DeviceBuffer of_dy = on_device(dy), of_x = on_device(x),
                             of_scale = on_device(scale), of_order(order);
          for (const bool norm : {false, true}) {
            ActBuffer want = random_numbers(DType::f32, width, 1, 8), got = want;
            ColumnSumsParams p{
                .sums = floats(want), .dy = dy.data(), .n_rows = rows, .dim = dim, .dy_type = act};
            if (norm) {
              p.x = x.data();
              p.scale = floats(scale);
              p.x_type = act;
              p.rows = order.data();
            }
            column_sums_ref(p, {0, dim});
            const DeviceBuffer sums = on_device(got);
            p.sums = sums.as<float>();
            p.dy = of_dy.raw();
            if (norm) {
              p.x = of_x.raw();
              p.scale = of_scale.as<float>();
              p.rows = of_order.as<int32_t>();
            }
            cuda_table().column_sums(p, queue().stream());
            launched("column_sums");
            read_back(sums, got);
            REQUIRE_CLOSE(got, want, ([&](size_t) { return (rows + 2) * kF32 * (rows + 1); }));
          }
        }
  }

  TEST_CASE("gate_mul_backward agrees with the reference, and columns of a with gate_mul") {
    for (const DType act : kActs)
      for (const int width : {1, 7, 16, 127, 1009, 4096})
        for (size_t way = 0; way < 4 * std::size(kGates); ++way) {
          const size_t kind = way % 4;  // no columns; listed; all; listed without da
          CAPTURE(dtype_name(act));
          CAPTURE(width);
          CAPTURE(way);
          constexpr int kRows = 2;
          const auto n = static_cast<size_t>(width);
          GateMulCase c(act, width, 0, kGates[way / 4]);
          ActBuffer da = random_numbers(act, kRows * n, 1, 9), want = c.gate_up, got = c.gate_up;
          std::vector<int32_t> columns;
          for (int i = 0; i < width; i += 3) columns.push_back(i);
          const size_t n_columns = kind == 0 ? 0 : kind == 2 ? n : columns.size();
          ActBuffer gathered(act, std::max<size_t>(1, kRows * n_columns));
          GateMulBackwardParams p{.gate_up = want.data(),
                                  .da = kind == 3 ? nullptr : da.data(),
                                  .a_columns = nullptr,
                                  .columns = nullptr,
                                  .n_rows = kRows,
                                  .ffn_dim = width,
                                  .n_columns = static_cast<int>(n_columns),
                                  .act = act,
                                  .gate = c.gate};
          gate_mul_backward_ref(p, {0, kRows});
          const DeviceBuffer gate_up = on_device(got), of_da = on_device(da), of_columns(columns),
                             of_a = on_device(gathered);
          p.gate_up = gate_up.raw();
          if (kind != 3) p.da = of_da.raw();
          if (kind != 0) p.a_columns = of_a.raw();
          if (kind == 1 || kind == 3) p.columns = of_columns.as<int32_t>();
          cuda_table().gate_mul_backward(p, queue().stream());
          launched("gate_mul_backward");
          read_back(gate_up, got);
          // bf16's exponential and reciprocal are good to 2^-14 of a spacing of theirs.
          const double slope = act == DType::bf16 ? 0x1p-12 : 12 * kF32;
          REQUIRE_CLOSE(got, want, ([&](size_t i) {
                          return spacing(act) * std::abs(double{want.get(i)}) + slope * 22 + kTiny;
                        }));
          if (kind == 0) continue;
          read_back(of_a, gathered);
          for (size_t i = 0; i < kRows * n_columns; ++i) {
            const size_t column = kind == 2 ? i % n : static_cast<size_t>(columns[i % n_columns]);
            const size_t at = i / n_columns * n + column;
            REQUIRE(std::abs(double{gathered.get(i)} - double{c.want.get(at)}) <= c.tolerance(at));
          }
        }
  }

  TEST_CASE("cross_entropy agrees with the reference") {
    constexpr int kRows = 4;
    for (const DType act : kActs)
      for (const int vocab : {1, 5, 37, 1000, 4096, 32000, 128256}) {
        CAPTURE(dtype_name(act));
        CAPTURE(vocab);
        const auto width = static_cast<size_t>(vocab);
        ActBuffer logits = random_numbers(DType::f32, kRows * width, 10, 10);
        if (vocab > 2) logits.set(1, -INFINITY);
        const std::vector<int32_t> targets = {0, vocab - 1, -1, vocab / 2};
        std::vector<float> loss(kRows), of_gpu;
        ActBuffer want(act, logits.size()), got(act, logits.size());
        CrossEntropyParams p{.logits = floats(logits),
                             .dlogits = want.data(),
                             .loss = loss.data(),
                             .targets = targets.data(),
                             .scale = 0.25f,
                             .n_rows = kRows,
                             .vocab = vocab,
                             .act = act};
        cross_entropy_ref(p, {0, kRows});
        const DeviceBuffer of_logits = on_device(logits), dlogits = on_device(got),
                           losses(loss.size() * sizeof(float)), of_targets(targets);
        p.logits = of_logits.as<float>();
        // In place, where that is allowed.
        p.dlogits = act == DType::f32 ? of_logits.raw() : dlogits.raw();
        p.loss = losses.as<float>();
        p.targets = of_targets.as<int32_t>();
        cuda_table().cross_entropy(p, queue().stream());
        launched("cross_entropy");
        read_back(act == DType::f32 ? of_logits : dlogits, got);
        const double relative = spacing(act) + (8 + vocab / 16.0) * kF32;
        REQUIRE_CLOSE(got, want, ([&](size_t i) {
                        return relative * (std::abs(double{want.get(i)}) + 1e-8) +
                               0.25 * spacing(act) * (std::abs(double{want.get(i)}) > 0.1);
                      }));
        of_gpu = losses.vector<float>();
        for (size_t r = 0; r < kRows; ++r)
          REQUIRE(std::abs(double{of_gpu[r]} - double{loss[r]}) <=
                  (4 + vocab / 16.0) * kF32 + 20 * kF32);
      }
  }

  TEST_CASE("rope_backward agrees with the reference, with norms of heads and without") {
    for (const DType act : kActs)
      for (const int d : {2, 6, 64, 128, 256})
        for (const int which : {0, 1, 2, 3, 4, 5}) {
          const bool normed = which > 2;
          CAPTURE(dtype_name(act));
          CAPTURE(d);
          CAPTURE(which);
          constexpr int kRows = 3, kHeads = 5, kKvHeads = 2;
          const auto width = static_cast<size_t>(d), all = kRows * (kHeads + 2 * kKvHeads) * width;
          const size_t half = width / 2;
          ActBuffer want = random_numbers(act, all, 1, 11), got = want,
                    qkv = random_numbers(act, all, 2, 12),
                    angles = random_numbers(DType::f32, 10 * half, 3, 13),
                    q_norm = random_numbers(DType::f32, width, 1, 14),
                    k_norm = random_numbers(DType::f32, width, 1, 15);
          std::vector<float> cosine, sine, dnorms(kRows * 2 * width);
          for (size_t i = 0; i < 10 * half; ++i) {
            cosine.push_back(std::cos(angles.get(i)));
            sine.push_back(std::sin(angles.get(i)));
          }
          const std::vector<int32_t> pos = {9, 0, 4};
          RopeBackwardParams p{.dqkv = want.data(),
                               .cos_table = cosine.data(),
                               .sin_table = sine.data(),
                               .pos = pos.data(),
                               .n_rows = kRows,
                               .n_heads = kHeads,
                               .n_kv_heads = kKvHeads,
                               .head_dim = d,
                               .act = act,
                               .rotated = turned(d, which % 3)};
          if (normed) {
            p.qkv = qkv.data();
            p.q_norm = floats(q_norm);
            p.k_norm = floats(k_norm);
            p.norm_eps = 1e-2f;
            p.dnorms = dnorms.data();
          }
          rope_backward_ref(p, {0, kRows});
          const DeviceBuffer dqkv = on_device(got), of_qkv = on_device(qkv), of_cosine(cosine),
                             of_sine(sine), of_pos(pos), of_q = on_device(q_norm),
                             of_k = on_device(k_norm), of_norms(dnorms.size() * sizeof(float));
          p.dqkv = dqkv.raw();
          p.cos_table = of_cosine.as<float>();
          p.sin_table = of_sine.as<float>();
          p.pos = of_pos.as<int32_t>();
          if (normed) {
            p.qkv = of_qkv.raw();
            p.q_norm = of_q.as<float>();
            p.k_norm = of_k.as<float>();
            p.dnorms = of_norms.as<float>();
          }
          cuda_table().rope_backward(p, queue().stream());
          launched("rope_backward");
          read_back(dqkv, got);
          // A turned gradient that is rounded otherwise changes what the norm's backward pass gives
          // by as much, divided by the head's length.
          const double tolerance = normed ? 24 * spacing(act) : 4 * kF32;
          REQUIRE_CLOSE(got, want, ([&](size_t i) {
                          return spacing(act) * std::abs(double{want.get(i)}) + tolerance;
                        }));
          if (!normed) continue;
          const auto of_gpu = of_norms.vector<float>();
          for (size_t i = 0; i < dnorms.size(); ++i)
            REQUIRE(std::abs(double{of_gpu[i]} - double{dnorms[i]}) <= 60 * spacing(act));
        }
  }

  TEST_CASE("rows of embeddings are summed in order") {
    constexpr int kVocab = 50, kRows = 200;
    for (const int dim : {1, 70, 300}) {
      const auto width = static_cast<size_t>(dim);
      ActBuffer dx = random_numbers(DType::f32, kRows * width, 1, 16),
                table = random_numbers(DType::f32, kVocab * width, 1, 17), got = table;
      std::vector<int32_t> ids;
      PhiloxStream draw(18);
      for (int r = 0; r < kRows; ++r) ids.push_back(static_cast<int32_t>(draw.below(kVocab)));
      const ops::TokenRows by_token(ids);
      for (size_t r = 0; r < kRows; ++r)
        for (size_t c = 0; c < width; ++c) {
          const size_t at = static_cast<size_t>(ids[r]) * width + c;
          table.set(at, table.get(at) + dx.get(r * width + c));
        }
      const DeviceBuffer of_table = on_device(got), of_dx = on_device(dx), of_lists(by_token.lists);
      cuda_table().embed_backward({.dtable = of_table.as<float>(),
                                   .dx = of_dx.as<float>(),
                                   .ids = of_lists.as<int32_t>(),
                                   .begin = of_lists.as<int32_t>() + by_token.n_tokens,
                                   .rows = of_lists.as<int32_t>() + 2 * by_token.n_tokens + 1,
                                   .n_ids = by_token.n_tokens,
                                   .dim = dim},
                                  queue().stream());
      launched("embed_backward");
      read_back(of_table, got);
      REQUIRE_CLOSE(got, table, ([](size_t) { return 0.0; }));
    }
  }

  TEST_CASE("square_sum and adamw agree with the reference") {
    for (const int n : {1, 3, 4, 5, 16384, 16385, 100003}) {
      CAPTURE(n);
      const auto size = static_cast<size_t>(n);
      ActBuffer weights = random_numbers(DType::f32, size, 1, 19),
                first = random_numbers(DType::f32, size, 1, 20),
                second = random_numbers(DType::f32, size, 1, 21),
                gradient = random_numbers(DType::f32, size, 1, 22),
                base = random_numbers(DType::f32, size, 1, 23);
      for (size_t i = 0; i < size; ++i) second.set(i, std::abs(second.get(i)));
      const int blocks = (n + kOptimBlock - 1) / kOptimBlock;
      std::vector<double> sums(static_cast<size_t>(blocks));
      square_sum_ref({sums.data(), floats(gradient), n}, {0, blocks});
      const DeviceBuffer of_gradient = on_device(gradient), of_sums(sums.size() * sizeof(double));
      cuda_table().square_sum({of_sums.as<double>(), of_gradient.as<float>(), n}, queue().stream());
      const auto got_sums = of_sums.vector<double>();
      for (size_t b = 0; b < sums.size(); ++b)
        REQUIRE(got_sums[b] == doctest::Approx(sums[b]).epsilon(64 * kF32));
      for (const bool decays : {false, true}) {
        ActBuffer w = weights, m = first, v = second;
        const DeviceBuffer of_w = on_device(w), of_m = on_device(m), of_v = on_device(v),
                           of_base = on_device(base);
        AdamWParams p{.weights = floats(w),
                      .first = floats(m),
                      .second = floats(v),
                      .gradient = floats(gradient),
                      .n = n,
                      .by = {.gradient_scale = 0.5f,
                             .learning_rate = 0.1f,
                             .beta1 = 0.9f,
                             .beta2 = 0.95f,
                             .epsilon = 1e-8f,
                             .weight_decay = decays ? 0.1f : 0.0f,
                             .unbias1 = 1 / 0.19f,
                             .unbias2 = 1 / 0.0975f},
                      .base = decays ? floats(base) : nullptr};
        adamw_ref(p, {0, blocks});
        p.weights = of_w.as<float>();
        p.first = of_m.as<float>();
        p.second = of_v.as<float>();
        p.gradient = of_gradient.as<float>();
        if (decays) p.base = of_base.as<float>();
        cuda_table().adamw(p, queue().stream());
        launched("adamw");
        ActBuffer got(DType::f32, size);
        read_back(of_m, got);
        REQUIRE_CLOSE(got, m, ([](size_t) { return 4 * kF32 * 2; }));
        read_back(of_v, got);
        REQUIRE_CLOSE(got, v, ([](size_t) { return 4 * kF32 * 2; }));
        read_back(of_w, got);
        // Updates are m / sqrt(v) of random v: rounding of m counts beside a small root.
        REQUIRE_CLOSE(got, w, ([&](size_t i) {
                        const double root = std::sqrt(double{v.get(i)} / 0.0975) + 1e-8;
                        return 0.1 * 16 * kF32 * (4 / 0.19 / root + 1) + 2 * kF32;
                      }));
      }
    }
  }

  TEST_CASE("AdamW with moments in bf16 has the CPU's bits") {
    for (const DType type : kActs)
      for (const int n : {1, 7, 8, 16384, 16391})
        for (const auto& [stochastic, first_element] :
             {std::pair{false, 13}, {true, 0}, {true, 13}, {true, 24}}) {
          CAPTURE(dtype_name(type));
          CAPTURE(n);
          CAPTURE(stochastic);
          CAPTURE(first_element);
          const auto size = static_cast<size_t>(n);
          ActBuffer w = random_numbers(type, size, 1, 26),
                    m = random_numbers(DType::bf16, size, 1, 27),
                    v = random_numbers(DType::bf16, size, 1, 28),
                    gradient = random_numbers(DType::f32, size, 1, 29);
          for (size_t i = 0; i < size; ++i) v.set(i, std::abs(v.get(i)));
          const DeviceBuffer of_w = on_device(w), of_m = on_device(m), of_v = on_device(v),
                             of_gradient = on_device(gradient);
          AdamWNarrowParams p{.weights = w.data(),
                              .first = static_cast<bf16*>(m.data()),
                              .second = static_cast<bf16*>(v.data()),
                              .gradient = floats(gradient),
                              .n = n,
                              .by = {.gradient_scale = 0.5f,
                                     .learning_rate = 1e-2f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .epsilon = 1e-8f,
                                     .weight_decay = 0.1f,
                                     .unbias1 = 1 / 0.19f,
                                     .unbias2 = 1 / 0.0975f},
                              .weight_type = type,
                              .stochastic = stochastic,
                              .seed = 77,
                              .step = 3,
                              .first_element = first_element};
          adamw_narrow_cpu(p, {0, (n + kOptimBlock - 1) / kOptimBlock});
          p.weights = of_w.raw();
          p.first = of_m.as<bf16>();
          p.second = of_v.as<bf16>();
          p.gradient = of_gradient.as<float>();
          cuda_table().adamw_narrow(p, queue().stream());
          launched("adamw_narrow");
          for (auto [device, host] : {std::pair{&of_w, &w}, {&of_m, &m}, {&of_v, &v}}) {
            ActBuffer got = *host;
            read_back(*device, got);
            REQUIRE_CLOSE(got, *host, ([](size_t) { return 0.0; }));
          }
        }
  }

  TEST_CASE("parts of weights are read and written, and nothing else") {
    constexpr int kOut = 7, kIn = 10;
    for (const DType act : kActs)
      for (const WeightPart part :
           {WeightPart::all, WeightPart::rows, WeightPart::columns, WeightPart::elements}) {
        CAPTURE(dtype_name(act));
        CAPTURE(static_cast<int>(part));
        ActBuffer matrix = random_numbers(act, kOut * kIn, 1, 24), got = matrix;
        const std::vector<int32_t> index = {1, 4, 6};
        const auto place = [&](size_t i) {
          switch (part) {
            case WeightPart::rows:
              return static_cast<size_t>(index[i / kIn]) * kIn + i % kIn;
            case WeightPart::columns:
              return i / 3 * kIn + static_cast<size_t>(index[i % 3]);
            case WeightPart::elements:
              return static_cast<size_t>(index[i]);
            default:
              return i;
          }
        };
        const size_t n = part == WeightPart::all       ? kOut * kIn
                         : part == WeightPart::rows    ? 3 * kIn
                         : part == WeightPart::columns ? 3 * kOut
                                                       : 3;
        ActBuffer given = random_numbers(DType::f32, n, 1, 25);
        const DeviceBuffer weights = on_device(matrix), of_index(index),
                           of_given = on_device(given), values(n * sizeof(float));
        WeightPartParams p{.weights = weights.raw(),
                           .values = values.as<float>(),
                           .index = of_index.as<int32_t>(),
                           .out = kOut,
                           .in = kIn,
                           .n = 3,
                           .part = part,
                           .act = act};
        cuda_table().read_weight_part(p, queue().stream());
        launched("read_weight_part");
        const auto read = values.vector<float>();
        for (size_t i = 0; i < n; ++i) REQUIRE(read[i] == matrix.get(place(i)));
        p.values = of_given.as<float>();
        cuda_table().write_weight_part(p, queue().stream());
        launched("write_weight_part");
        read_back(weights, got);
        for (size_t i = 0; i < n; ++i) matrix.set(place(i), given.get(i));
        REQUIRE_CLOSE(got, matrix, ([](size_t) { return 0.0; }));
      }
  }
}
