#include <doctest/doctest.h>

#include <set>

#include "base/gpu_cards.h"

using namespace tandem;

TEST_SUITE("base/gpu_cards") {
  TEST_CASE("each card is found by its name and has every figure") {
    constexpr double kGiB = 1 << 30;
    std::set<std::string_view> names, titles;
    for (const GpuCard& card : gpu_cards()) {
      CAPTURE(card.name);
      CHECK(names.insert(card.name).second);
      CHECK(titles.insert(card.title).second);
      CHECK(find_gpu_card(card.name) == &card);
      const double memory = static_cast<double>(card.memory_bytes) / kGiB;
      CHECK((memory > 8 && memory < 300));
      CHECK((card.multiprocessors >= 16 && card.multiprocessors <= 200));
      // What a GPU can do in a second, within what any one of these generations does.
      CHECK((card.read_gbps >= 200 && card.read_gbps <= 10000));
      CHECK((card.bf16_tflops >= 30 && card.bf16_tflops <= 3000));
      CHECK((card.link_gbps == 31.5 || card.link_gbps == 63.0));
      const bool known = card.capability == 80 || card.capability == 86 || card.capability == 89 ||
                         card.capability == 90 || card.capability == 100 || card.capability == 120;
      CHECK(known);
      CHECK(card.block_shared_bytes == (card.capability == 80 ? 163 << 10
                                        : card.capability == 90 || card.capability == 100
                                            ? 227 << 10
                                            : 99 << 10));
    }
    for (const char* name : {"h200", "h100", "a100-80", "a100-40", "l20", "l40s", "a10", "rtx-3090",
                             "rtx-4090", "rtx-5090", "b200"})
      CHECK(names.contains(name));
    CHECK(find_gpu_card("h20") == nullptr);
    CHECK(find_gpu_card("") == nullptr);
  }

  TEST_CASE("a card of no model has the limits of an H100, the memory asked for and no rates") {
    const GpuCard card = any_gpu_card(size_t{5} << 30);
    CHECK(card.name.empty());
    CHECK(card.memory_bytes == size_t{5} << 30);
    CHECK(card.multiprocessors == find_gpu_card("h100")->multiprocessors);
    CHECK(card.block_shared_bytes == 227 << 10);
    CHECK((card.read_gbps == 0 && card.bf16_tflops == 0 && card.link_gbps == 0));
  }
}
