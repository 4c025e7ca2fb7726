// What a step moves over the GPU's memory, host memory and the link, on paper: Llama-3.1-8B at
// 98,304 tokens, layers 0 and 16 dense.
#include <doctest/doctest.h>

#include "kv/hosted/step_traffic.h"

using namespace tandem;
using doctest::Approx;
using kv::StepTraffic;
using recipe::Attend;
using recipe::CacheKind;
using recipe::IndexPlace;

namespace {

constexpr int kLength = 98304, kSinks = 4, kRecent = 64, kHosted = 30;
constexpr double kIndexed = kLength - kSinks - kRecent;
constexpr double kTokenBytes = 2 * 8 * 128 * 2;  // keys and values of 8 heads, bf16

kv::Geometry llama_8b() {
  return {.n_layers = 32, .n_heads = 32, .n_kv_heads = 8, .head_dim = 128, .dtype = DType::bf16};
}

recipe::Cache hosted(CacheKind kind, Attend attend, IndexPlace index) {
  recipe::Cache cache;
  cache.kind = kind;
  cache.place = recipe::CachePlace::host;
  cache.attend = attend;
  cache.index = index;
  cache.dense_layers = {0, 16};
  cache.hybrid.exact = {0.023};
  return cache;
}

StepTraffic traffic(const recipe::Cache& cache, int length = kLength, int batch = 1) {
  return kv::step_traffic(cache, llama_8b(), length, batch);
}

/// Bytes of the hybrid's index in one layer: signs, a byte of scale, one of the share along the
/// axis and one of the cluster; 64 means; two more bits a dimension of .06 of the keys, for each of
/// 4 heads.
double hybrid_index_bytes() {
  const double signs = 19 * kIndexed, means = 64 * 256, low_bits = 4 * 32 * .06 * kIndexed;
  return 8 * (signs + means + low_bits);
}

}  // namespace

TEST_SUITE("kv/hosted/step_traffic") {
  TEST_CASE("a hybrid that the CPU chooses and attends") {
    const StepTraffic t = traffic(hosted(CacheKind::hybrid, Attend::cpu, IndexPlace::host));
    CHECK(t.hosted_layers == kHosted);
    CHECK(t.key_bytes == Approx(12.1e9).epsilon(0.003));
    CHECK(t.key_bytes == kHosted * kTokenBytes * (kLength - kRecent));
    // 2.3 % of the keys for each of four heads, which share none, and the sinks.
    CHECK(t.chosen_bytes == Approx(1.12e9).epsilon(0.01));
    CHECK(t.chosen_bytes ==
          Approx(kHosted * kTokenBytes * (4 * .023 * kIndexed + kSinks)).epsilon(1e-4));
    CHECK(t.share() == Approx(.092).epsilon(0.001));
    CHECK(t.cpu_rows == t.chosen_bytes);
    CHECK(t.cpu_stream == 0);
    CHECK(t.cpu_codes == Approx(kHosted * hybrid_index_bytes()).epsilon(1e-6));
    CHECK(t.cpu() == t.cpu_rows + t.cpu_codes);
    CHECK(t.cpu_scores == kHosted * 32 * kIndexed);
    CHECK(t.choosing_layers == 0);
    // Two dense layers, and the newest tokens of the others.
    CHECK(t.gpu_keys == kTokenBytes * (2 * kLength + kHosted * kRecent));
    CHECK(t.gpu() == t.gpu_keys);
    // Queries of bf16, results and their lse of f32.
    CHECK(t.link() == kHosted * 32 * (128 * 2 + 129 * 4));
  }

  TEST_CASE("an index on the GPU, and who reads what it chose") {
    const StepTraffic cpu = traffic(hosted(CacheKind::hybrid, Attend::cpu, IndexPlace::device));
    const double index = kHosted * hybrid_index_bytes();
    CHECK(cpu.gpu_index == Approx(index).epsilon(1e-6));
    CHECK(cpu.choosing_layers == kHosted);
    CHECK(cpu.cpu_codes == 0);
    CHECK(cpu.cpu_scores == 0);
    CHECK(cpu.cpu_rows == cpu.chosen_bytes);
    const double small = kHosted * 32 * (128 * 2 + 129 * 4);
    const double ids = kHosted * 32 * 4 * .023 * kIndexed;
    CHECK(cpu.link() == Approx(small + ids).epsilon(1e-4));
    const StepTraffic gpu = traffic(hosted(CacheKind::hybrid, Attend::gpu, IndexPlace::device));
    CHECK(gpu.cpu() == 0);
    CHECK(gpu.link() == gpu.chosen_bytes);
    CHECK(gpu.chosen_bytes == cpu.chosen_bytes);
    CHECK(gpu.gpu_index == cpu.gpu_index);
    recipe::Cache divided = hosted(CacheKind::hybrid, Attend::both, IndexPlace::device);
    divided.cpu_share = .58;
    const StepTraffic both = traffic(divided);
    CHECK(both.cpu_rows == Approx(.58 * cpu.chosen_bytes));
    CHECK(both.link_rows == Approx(.42 * cpu.chosen_bytes));
    CHECK(both.link_small == Approx(small + .58 * ids).epsilon(1e-4));
  }

  TEST_CASE("sets that a KV head's query heads share are read once") {
    recipe::Cache cache = hosted(CacheKind::hybrid, Attend::cpu, IndexPlace::host);
    const StepTraffic alone = traffic(cache);
    cache.hybrid.group = recipe::HybridGroup::shared;
    const StepTraffic shared = traffic(cache);
    CHECK(shared.chosen_bytes == Approx(alone.chosen_bytes / 4).epsilon(0.002));
    CHECK(alone.cpu_codes - shared.cpu_codes ==
          Approx(kHosted * 8 * 3 * 32 * .06 * kIndexed).epsilon(1e-6));
  }

  TEST_CASE("hash tables: two lines and a bucket a table and block, a line of norms a key") {
    const StepTraffic t = traffic(hosted(CacheKind::lsh, Attend::cpu, IndexPlace::host));
    CHECK(t.hosted_layers == kHosted);
    CHECK(t.cpu_stream + t.cpu_codes == 0);
    const double keys = (t.chosen_bytes / kHosted / kTokenBytes - kSinks) / 4;  // of a head
    CHECK(keys / kIndexed == Approx(.0176).epsilon(0.01));
    const double tables = 150 * (3 * 128 + 2 * 1.65 * kIndexed / 1024);
    const double index = kHosted * 32 * (tables + 64 * keys);
    CHECK(t.cpu_rows - t.chosen_bytes == Approx(index).epsilon(1e-4));
    // .26 GB at 2.3 % of the keys.
    CHECK(kHosted * 32 * (tables + 64 * .023 * kIndexed) == Approx(.26e9).epsilon(0.08));
    const StepTraffic gpu = traffic(hosted(CacheKind::lsh, Attend::gpu, IndexPlace::device));
    CHECK(gpu.gpu_index == Approx(index).epsilon(1e-4));
    CHECK(gpu.link() == gpu.chosen_bytes);
    CHECK(gpu.cpu() == 0);
  }

  TEST_CASE("eight bits: a byte a number and a scale a row, which lists read in a separate line") {
    for (const CacheKind kind : {CacheKind::hybrid, CacheKind::lsh}) {
      recipe::Cache cache = hosted(kind, Attend::cpu, IndexPlace::host);
      const StepTraffic wide = traffic(cache);
      cache.host_dtype = recipe::HostDtype::int8;
      const StepTraffic narrow = traffic(cache);
      CHECK(narrow.key_bytes == Approx(wide.key_bytes * 264 / 512));
      CHECK(narrow.chosen_bytes == Approx(wide.chosen_bytes * 264 / 512));
      CHECK(narrow.share() == Approx(wide.share()));
      CHECK(wide.cpu_rows - narrow.cpu_rows == Approx(wide.chosen_bytes * (512 - 320) / 512));
      CHECK(narrow.cpu_codes == wide.cpu_codes);
      CHECK(narrow.gpu() == wide.gpu());
      CHECK(narrow.link() == wide.link());
    }
  }

  TEST_CASE("full attention reads all keys, where they are or through a ring of layers") {
    const StepTraffic cpu = traffic(hosted(CacheKind::full, Attend::cpu, IndexPlace::automatic));
    const double all = cpu.hosted_layers * kTokenBytes * kLength;
    CHECK(cpu.hosted_layers >= kHosted);
    CHECK(cpu.share() == 1);
    CHECK(cpu.cpu_stream == Approx(all).epsilon(0.002));
    CHECK(cpu.cpu_rows == 0);
    CHECK(cpu.link() == cpu.hosted_layers * 32 * (128 * 2 + 129 * 4));
    const StepTraffic gpu = traffic(hosted(CacheKind::full, Attend::gpu, IndexPlace::automatic));
    CHECK(gpu.link() == cpu.cpu_stream);
    CHECK(gpu.gpu_ring == 2 * gpu.link());
    CHECK(gpu.cpu() == 0);
  }

  TEST_CASE("sequences add up; a text without an index is on the GPU") {
    const recipe::Cache cache = hosted(CacheKind::hybrid, Attend::cpu, IndexPlace::host);
    const StepTraffic one = traffic(cache), five = traffic(cache, kLength, 5);
    CHECK(five.hosted_layers == one.hosted_layers);
    CHECK(five.key_bytes == 5 * one.key_bytes);
    CHECK(five.cpu() == Approx(5 * one.cpu()));
    CHECK(five.cpu_scores == 5 * one.cpu_scores);
    CHECK(traffic(hosted(CacheKind::hybrid, Attend::gpu, IndexPlace::device), kLength, 5)
              .choosing_layers == kHosted);
    CHECK(five.gpu() == Approx(5 * one.gpu()));
    CHECK(five.link() == Approx(5 * one.link()));
    const StepTraffic few = traffic(cache, 60);
    CHECK(few.key_bytes == 0);
    CHECK(few.cpu() == 0);
    CHECK(few.link() == 0);
    CHECK(few.gpu() == 32 * 60 * kTokenBytes);
  }
}
