#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "speculate/magicdec_tables.h"
#include "speculate/plan/chain_tokens.h"
#include "speculate/plan/gamma_choice.h"
#include "speculate/plan_models.h"

// Reference values: a double-precision script over the MagicDec paper's formulas, independent of
// this library.
using namespace tandem;
using namespace tandem::speculate;
using namespace tandem::testing;

namespace {

/// Eight GPUs at shares of their data sheet's rates.
MachineRates eight(double flops, double bytes, double read_share = 1, double flops_share = 1) {
  return {.ranks = 8, .flops_s = flops * flops_share, .read_bytes_s = bytes * read_share};
}
MachineRates a100(double read_share = 1, double flops_share = 1) {
  return eight(312e12, 2.039e12, read_share, flops_share);
}
MachineRates h100(double read_share = 1, double flops_share = 1) {
  return eight(989e12, 3.35e12, read_share, flops_share);
}

/// Reference values have ten decimals.
doctest::Approx near(double value) { return doctest::Approx(value).epsilon(1e-9); }

/// Speed-up over plain decoding at a context, in tokens, for an unbounded batch.
/// row_keys  key_equivalent_of_row
double large_batch_speedup(double row_keys, const SelfDraft& d, double context) {
  const double round =
      d.gamma * (row_keys + std::min(d.budget, context)) + (d.gamma + 1) * row_keys + context;
  return chain_tokens(d.gamma, d.alpha) * (row_keys + context) / round;
}

}  // namespace

TEST_SUITE("speculate/plan/tokens") {
  TEST_CASE("expected tokens of a chain") {
    for (const TokensRow& row : kChainTokens)
      for (size_t i = 0; i < kGammas.size(); ++i)
        CHECK(chain_tokens(kGammas[i], row.alpha) == near(row.tokens[i]));
    CHECK(chain_tokens(7, 1) == 8);
    CHECK(chain_tokens(7, 0) == 1);
    CHECK(chain_tokens(0, .5) == 1);
  }

  TEST_CASE("a batch of unlike sequences gives the mean of their tokens") {
    const std::array alphas = {.6, .7, .8, .9, .95};
    CHECK(chain_tokens(2, alphas) == near(2.4305000000));
    CHECK(chain_tokens(4, alphas) == near(3.4119562500));
    CHECK(chain_tokens(6, alphas) == near(4.1381088156));
    CHECK(chain_tokens(2, .79) == near(2.4141000000));
    CHECK(chain_tokens(4, .79) == near(3.2966398100));
    CHECK(chain_tokens(6, .79) == near(3.8474329054));
  }

  TEST_CASE("the alpha that gives that many tokens") {
    for (const double alpha : {.1, .5, .9, 1.0})
      for (const int gamma : {1, 3, 16})
        CHECK(*alpha_for(gamma, chain_tokens(gamma, alpha)) == near(alpha));
    CHECK(alpha_for(3, 1) == 0);
    CHECK(alpha_for(3, .5) == 0);
    CHECK_FALSE(alpha_for(3, 4.001));
  }
}

TEST_SUITE("speculate/plan/roofline") {
  TEST_CASE("bytes of KV and of weights cross") {
    CHECK(kLlama2_7B.kv_bytes == 524288);
    CHECK(kLlama3_8B.product_bytes == 2.0 * (6979321856 + 525336576));
    const auto crossing = [](const ModelCosts& c) {
      return std::round(c.product_bytes / c.kv_bytes * 10);
    };
    CHECK(crossing(kLlama2_7B) == 252040);
    CHECK(crossing(kLlama3_8B) == 1145120);
    CHECK(crossing(kLlama3_70B) == 4242048);
    CHECK(crossing(kLlama3_1B) == 754240);
    CHECK(crossing(shape(22, 2048, 32, 4, 64, 5632, 32000)) == 918342);
    CHECK(crossing(shape(28, 3584, 28, 4, 128, 18944, 152064)) == 2465920);
    CHECK(crossing(shape(64, 5120, 40, 8, 128, 27648, 152064)) == 2440200);
    CHECK(crossing(shape(32, 4096, 32, 8, 128, 14336, 32768)) == 1085440);
  }

  TEST_CASE("forwards and the speed-up that follows from them") {
    struct Row {
      const ModelCosts& target;
      const ModelCosts& draft;
      MachineRates machine;
      double context;
      int batch, gamma;
      double budget, alpha, plain_ms, verify_ms, draft_ms, speedup;
    };
    const Row rows[] = {
        {kLlama3_8B, kLlama3_8B, a100(), 1000, 256, 3, 512, .8, 3.5964568396, 8.2147081824,
         2.5926214536, .6638544588},
        {kLlama3_8B, kLlama3_8B, a100(), 4000, 256, 3, 512, .8, 9.7675760157, 14.3858273584,
         2.5926214536, 1.3009513380},
        {kLlama3_8B, kLlama3_8B, a100(), 32000, 32, 3, 512, .8, 9.1482984836, 9.1482984836,
         1.0517901246, 2.1949369279},
        {kLlama3_8B, kLlama3_8B, a100(.85, .4), 32000, 256, 3, 512, .8, 81.2900383284,
         92.8356666854, 5.0876067143, 2.2199033510},
        {kLlama2_7B, kLlama2_7B, a100(), 4000, 128, 3, 512, .8, 17.2664057597, 19.1669136494,
         2.9164966356, 1.8258236488},
        {kLlama3_8B, kLlama3_8B, h100(.85, .4), 32000, 128, 6, 2049, .89, 24.2265245331,
         27.8169947852, 2.1679469907, 3.0086102141},
        {kLlama3_70B, kLlama3_70B, h100(.85, .4), 32000, 32, 4, 1025, .85, 20.8317712407,
         21.7572506508, 6.5738074128, 1.6077704487},
        {kLlama3_8B, kLlama3_1B, h100(.85, .4), 32000, 128, 3, 512, .673, 24.2265245331,
         25.9958441040, .2027645865, 2.2135139304},
    };
    for (const Row& r : rows) {
      CAPTURE(r.plain_ms);
      const PlanInputs plan{
          .machine = r.machine,
          .target = r.target,
          .draft = {.model = r.draft, .choice = {recipe::CacheKind::streaming, r.budget}},
          .most_gamma = r.gamma};
      const StepCost cost = sheet_cost(plan, {r.batch, r.context});
      CHECK(cost.plain_ms() == near(r.plain_ms));
      CHECK(cost.target.ms.back() == near(r.verify_ms));
      CHECK(cost.draft.at(1) == near(r.draft_ms));
      CHECK(at_gamma(cost, r.gamma, r.alpha).speedup == near(r.speedup));
    }
  }

  TEST_CASE("fixed parts, reductions and uneven KV heads count") {
    MachineRates m = h100();
    const ForwardTime bare = forward_time(m, kLlama3_8B, {.batch = 8, .keys = 1000});
    CHECK(bare.reductions_s + bare.fixed_s == 0);
    m.forward_s = 1e-3;
    m.reduction_s = 1e-5;
    m.link_bytes_s = 400e9;
    const ForwardTime whole = forward_time(m, kLlama3_8B, {.batch = 8, .keys = 1000});
    const double sum_s = 1e-5 + 2.0 * 7 / 8 * (8 * 4096 * 2) / 400e9;
    CHECK(whole.reductions_s == near(66 * sum_s));
    CHECK(whole.total_s() == near(bare.total_s() + 66 * sum_s + 1e-3));
    m.ranks = 3;
    CHECK(kv_share(m, kLlama3_8B) == 3.0 / 8);
    m.ranks = 16;
    CHECK(kv_share(m, kLlama3_8B) == 1.0 / 8);
    m.ranks = 1;
    CHECK(forward_time(m, kLlama3_8B, {.batch = 8}).reductions_s == 0);
  }

  TEST_CASE("where arithmetic bounds a forward") {
    CHECK_FALSE(forward_time(a100(), kLlama3_8B, {.batch = 153, .keys = 10}).linear_computes);
    CHECK(forward_time(a100(), kLlama3_8B, {.batch = 154, .keys = 10}).linear_computes);
    CHECK_FALSE(forward_time(h100(), kLlama3_8B, {.batch = 295, .keys = 10}).linear_computes);
    CHECK(forward_time(h100(), kLlama3_8B, {.batch = 296, .keys = 10}).linear_computes);
    // A group of four query heads reads each key once: FLOP a byte are 4 a row.
    const auto attention = [](int rows) {
      return forward_time(h100(), kLlama3_8B, {.batch = 1, .rows = rows, .keys = 1000});
    };
    CHECK_FALSE(attention(73).attention_computes);
    CHECK(attention(74).attention_computes);
  }

  TEST_CASE("layers with a window read no more than it") {
    model::ModelConfig c;
    c.n_layers = 4;
    c.n_heads = c.n_kv_heads = c.head_dim = c.dim = c.ffn_dim = c.vocab_size = 2;
    c.slide(100, c.layers_from(1));
    const ModelCosts costs = costs_of(c, DType::f32);
    CHECK(costs.keys_seen(50) == 50);
    CHECK(costs.keys_seen(500) == (500 + 3 * 100) / 4.0);
  }
}

TEST_SUITE("speculate/plan/large_batch") {
  TEST_CASE("critical contexts") {
    struct Row {
      const ModelCosts& model;
      MachineRates machine;
      double row_keys, pays, half_more;
    };
    const Row rows[] = {
        {kLlama2_7B, a100(), 164.714603, 1128.465528, 2443.020537},
        {kLlama2_7B, a100(.85, .4), 350.018530, 1512.743346, 3406.294675},
        {kLlama2_7B, h100(.85, .4), 181.416557, 1163.101549, 2529.843094},
        {kLlama3_8B, a100(), 748.365282, 2338.823085, 5477.039359},
        {kLlama3_8B, a100(.85, .4), 1590.276224, 4084.753154, 9853.584670},
        {kLlama3_8B, h100(), 387.881901, 1591.263286, 3603.121617},
        {kLlama3_8B, h100(.85, .4), 824.249039, 2496.188582, 5871.509469},
        {kLlama3_70B, a100(.85, .4), 5891.110169, 13003.695679, 32210.812367},
        {kLlama3_70B, h100(.85, .4), 3053.395268, 7118.926252, 17459.385319},
    };
    const SelfDraft draft{.gamma = 3, .alpha = .8, .budget = 512};
    for (const Row& r : rows) {
      const double row_keys = key_equivalent_of_row(r.machine, r.model);
      CHECK(std::abs(row_keys - r.row_keys) < 5.1e-7);  // six decimals are given
      CHECK(critical_context(row_keys, draft, 1).value() == near(r.pays));
      CHECK(critical_context(row_keys, draft, 1.5).value() == near(r.half_more));
      CHECK(large_batch_speedup(row_keys, draft, r.pays) == near(1));
      CHECK(large_batch_speedup(row_keys, draft, r.half_more) == near(1.5));
    }
    CHECK_FALSE(critical_context(800, {.gamma = 3, .alpha = .8}, 2.96));
  }

  TEST_CASE("it is what the roofline comes to") {
    const MachineRates m = h100(.85, .4);
    const PlanInputs plan{
        .machine = m,
        .target = kLlama3_8B,
        .draft = {.model = kLlama3_8B, .choice = {recipe::CacheKind::streaming, 512}},
        .most_gamma = 3};
    const double by_parts = at_gamma(sheet_cost(plan, {1 << 24, 10000}), 3, .8).speedup;
    CHECK(large_batch_speedup(key_equivalent_of_row(m, kLlama3_8B), {}, 10000) == near(by_parts));
  }
}

TEST_SUITE("speculate/plan/gamma") {
  TEST_CASE("best gamma and its speed-up") {
    for (const BestGammaRow& row : kBestGammas)
      for (size_t i = 0; i < kBestAlphas.size(); ++i) {
        CAPTURE(row.u);
        CAPTURE(row.c);
        CAPTURE(kBestAlphas[i]);
        std::vector<double> verify;
        for (int gamma = 1; gamma <= 32; ++gamma) verify.push_back(1 + row.u * gamma);
        const StepCost times = chain_steps(1, row.c, verify);
        const GammaChoice best = best_gamma(times, kBestAlphas[i]);
        CHECK(best.gamma == row.best[i].gamma);
        CHECK(best.speedup == near(row.best[i].speedup));
        // The marginal rule stops there, since rounds grow by equal steps.
        int gamma = 0;
        const auto more = [&] {
          const GammaChoice now = at_gamma(times, gamma, kBestAlphas[i]),
                            next = at_gamma(times, gamma + 1, kBestAlphas[i]);
          return std::pow(kBestAlphas[i], gamma + 1) / now.tokens >
                 (next.round_ms - now.round_ms) / now.round_ms;
        };
        while (gamma < 32 && more()) ++gamma;
        CHECK(gamma == best.gamma);
      }
  }

  TEST_CASE("a fixed part of rounds stops the marginal rule, not the best gamma") {
    const StepCost times = chain_steps(1, .01, {1, 1, 1, 1}, .95);
    CHECK(at_gamma(times, 1, .9).speedup < 1);
    CHECK(best_gamma(times, .9).gamma == 4);
    CHECK(best_gamma(times, .3).gamma == 0);
    CHECK(best_gamma(times, .3).speedup == 1);
    CHECK(best_chain(times, .3).gamma == 4);
    CHECK(best_chain(times, .3).speedup < 1);
    CHECK(best_chain(chain_steps(1, 0, {}), .3).gamma == 0);
    // A draft as slow as the target gains nothing at any gamma, whatever the last bits say.
    constexpr double kStep = 28.487779158286777;
    const StepCost equal = chain_steps(kStep, kStep, std::vector(8, kStep));
    CHECK(best_chain(equal, 1).gamma == 1);
    CHECK(best_gamma(equal, 1).gamma == 0);
  }

  TEST_CASE("the least alpha for a speed-up") {
    const StepCost times = chain_steps(1, .2, {1, 1.1, 1.1, 1.6});
    for (const double speedup : {.9, 1.0, 1.3, 1.8}) {
      const LeastAlpha least = least_alpha(times, speedup).value();
      CHECK(at_gamma(times, least.gamma, least.alpha).speedup == near(speedup));
      CHECK(best_gamma(times, least.alpha - 1e-6).speedup < std::max(1.0, speedup) + 1e-12);
      for (int gamma = 1; gamma <= 4; ++gamma)
        CHECK(at_gamma(times, gamma, least.alpha - 1e-6).speedup < speedup);
    }
    CHECK_FALSE(least_alpha(times, 2.5));
  }

  TEST_CASE("choosing keys again costs each token its share") {
    StepCost times = chain_steps(1, .1, {1, 1, 1});
    const double before = at_gamma(times, 3, .8).token_ms;
    times.token_ms = .05;
    CHECK(at_gamma(times, 3, .8).token_ms == near(before + .05));
    const LeastAlpha least = least_alpha(times, 1.5).value();
    CHECK(at_gamma(times, least.gamma, least.alpha).speedup == near(1.5));
    CHECK(best_gamma(times, 0).token_ms == 1);
    times.token_ms = 1;
    CHECK_FALSE(least_alpha(times, 1.0));
  }
}

TEST_SUITE("speculate/plan/keys") {
  TEST_CASE("what choosing keys costs") {
    const double kv = kLlama3_8B.kv_bytes, context = 32000;
    const auto of = [&](recipe::CacheKind keys) {
      const KeyChoice choice{.keys = keys, .budget = 512, .page = 16};
      return std::array{select_bytes(choice, kLlama3_8B, context),
                        round_bytes(choice, kLlama3_8B, context),
                        refresh_bytes(choice, kLlama3_8B, context), keys_read(choice, context)};
    };
    using Costs = std::array<double, 4>;
    CHECK(of(recipe::CacheKind::full) == Costs{0, 0, 0, context});
    CHECK(of(recipe::CacheKind::streaming) == Costs{0, 0, 0, 512});
    CHECK(of(recipe::CacheKind::quest) == Costs{kv * context / 16, 0, 0, 512});
    CHECK(of(recipe::CacheKind::retrieval) == Costs{0, 0, kv * context / 32, 512});
    CHECK(of(recipe::CacheKind::topk) == Costs{kv * context / 2, 0, 0, 512});
    CHECK(of(recipe::CacheKind::snapkv) == Costs{0, 0, kv * context / 2 + 2 * 512 * kv, 512});
    // Two bytes a key and KV head, written and read, of 2 * 128 * 2 bytes of K and V.
    CHECK(of(recipe::CacheKind::verified) == Costs{0, kv * context / 128, 0, 512});
    CHECK(keys_read({recipe::CacheKind::snapkv, 512}, 100) == 100);
  }

  TEST_CASE("they lengthen steps, rounds and tokens") {
    PlanInputs plan{.machine = {.flops_s = 1e15, .read_bytes_s = 4e12},
                    .target = kLlama3_8B,
                    .draft = {.model = kLlama3_8B, .choice = {recipe::CacheKind::streaming, 512}},
                    .most_gamma = 3};
    const Workload work{16, 32000};
    const StepCost fixed = sheet_cost(plan, work);
    CHECK(fixed.overhead_ms == 0);
    plan.draft.choice.keys = recipe::CacheKind::topk;
    CHECK(sheet_cost(plan, work).draft.at(1) ==
          near(fixed.draft.at(1) + 1e3 * 16 * 32000 * kLlama3_8B.kv_bytes / 2 / 4e12));
    plan.draft.choice.keys = recipe::CacheKind::verified;
    CHECK(sheet_cost(plan, work).overhead_ms ==
          near(1e3 * 16 * 32000 * kLlama3_8B.kv_bytes / 128 / 4e12));
    plan.draft.choice.keys = recipe::CacheKind::snapkv;
    CHECK(sheet_cost(plan, work).token_ms == 0);
    plan.draft.choice.refresh_tokens = 128;
    CHECK(sheet_cost(plan, work).token_ms ==
          near(1e3 * 16 * kLlama3_8B.kv_bytes * (16000 + 1024) / 4e12 / 128));
    plan.draft.model.reset();  // prompt lookup
    CHECK(sheet_cost(plan, work).draft.at(1) == 0);
    CHECK(sheet_cost(plan, work).target.ms == fixed.target.ms);
  }

  TEST_CASE("where speculation begins to pay, and where a larger batch gains more") {
    PlanInputs plan{.machine = h100(.85, .4),
                    .target = kLlama3_8B,
                    .draft = {.model = kLlama3_8B, .choice = {recipe::CacheKind::streaming, 512}},
                    .most_gamma = 8};
    const auto best = [&](int batch, double context) {
      return best_gamma(sheet_cost(plan, {batch, context}), .8).speedup;
    };
    const CostAt cost = [&](const Workload& work) { return sheet_cost(plan, work); };
    const double pays = pays_from(cost, .8, 256, 131072).value();
    CHECK(best(256, pays) > 1);
    CHECK(best(256, pays / 1.02) == 1);
    const double turns = inflection_context(cost, .8, {32, 256}, 131072).value();
    CHECK(best(256, turns) >= best(32, turns));
    CHECK(best(256, turns / 1.02) < best(32, turns / 1.02));
    // Both batches gain the same as long as a draft reads all keys.
    plan.draft.choice.budget = 1e6;
    CHECK(inflection_context(cost, .8, {1, 2}, 131072) == 1);
    plan.machine.round_s = 10;
    CHECK_FALSE(pays_from(cost, .8, 256, 131072));
  }
}

TEST_SUITE("speculate/plan/memory") {
  TEST_CASE("sequences that eight GPUs of 80 GB hold at nine tenths") {
    const auto most = [](const ModelCosts& c, double context) {
      return most_sequences(h100(), c, nullptr, {.memory_bytes = .9 * 80e9, .context = context});
    };
    CHECK(most(kLlama3_8B, 100096) == 42);
    CHECK(most(kLlama3_8B, 32128) == 132);
    CHECK(most(kLlama2_7B, 32128) == 33);
    CHECK(most(kLlama3_8B, 1e9) == 0);
  }

  TEST_CASE("a draft takes room for its weights and its keys") {
    const Holdings self{.memory_bytes = 72e9, .context = 32128, .draft_context = 2176};
    CHECK(most_sequences(h100(), kLlama3_8B, nullptr, self) == 124);
    CHECK(most_sequences(h100(), kLlama3_8B, &kLlama3_1B, self) == 130);
    CHECK(most_sequences(h100(), kLlama3_8B, nullptr, {.memory_bytes = 1e9, .context = 32128}) ==
          0);
  }
}
