#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <string>

#include "base/cpu_features.h"
#include "base/error.h"

using namespace tandem;

TEST_SUITE("base/cpu_features") {
  constexpr std::array kIsas = {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};

  TEST_CASE("an ISA by its name, on CPUs of every level") {
    for (const Isa best : kIsas)
      for (const Isa isa : kIsas) {
        CAPTURE(isa_name(best));
        CAPTURE(isa_name(isa));
        if (isa <= best) {
          CHECK(isa_by_name(isa_name(isa), best) == isa);
          continue;
        }
        try {
          isa_by_name(isa_name(isa), best);
          FAIL("not thrown");
        } catch (const Error& e) {
          CHECK(e.kind() == ErrorKind::device);
          CHECK(e.what() == "TANDEM_ISA: '" + std::string(isa_name(isa)) +
                                "' is not supported by this CPU (" + cpu_model_name() +
                                "), which has " + isa_name(best));
          CHECK(e.hint_text() == "unset TANDEM_ISA or lower it");
        }
      }
  }

  TEST_CASE("an unknown name") {
    for (const char* name : {"sse9", "AVX2", "avx2 ", "avx", ""}) {
      CAPTURE(name);
      try {
        isa_by_name(name, Isa::amx);
        FAIL("not thrown");
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::usage);
        CHECK(e.what() == "TANDEM_ISA: unknown instruction set '" + std::string(name) + "'");
        CHECK(e.hint_text() == "one of: scalar, avx2, avx512, avx512_bf16, amx");
      }
    }
  }

  TEST_CASE("this program runs at the ISA that TANDEM_ISA names") {
    const char* name = std::getenv("TANDEM_ISA");
    const bool lowered = name != nullptr && *name != '\0';
    CHECK(isa_name(isa_in_use()) == std::string(lowered ? name : isa_name(isa_detected())));
    if (!lowered) return;
    const char* onednn = std::getenv("ONEDNN_MAX_CPU_ISA");
    REQUIRE(onednn != nullptr);
    if (isa_in_use() == Isa::avx2) CHECK(onednn == std::string("AVX2"));
  }

  TEST_CASE("without TANDEM_ISA oneDNN keeps no limit of a parent") {
    const char* name = std::getenv("TANDEM_ISA");
    const std::string before = name != nullptr ? name : "";
    setenv("TANDEM_ISA", "", 1);
    setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
    lower_isa_by_environment();
    CHECK(std::getenv("ONEDNN_MAX_CPU_ISA") == nullptr);
    setenv("TANDEM_ISA", before.c_str(), 1);
    lower_isa_by_environment();
  }
}
