#include <functional>
#include <limits>

#include "kernels/attend_list_case.h"
#include "kv/log_u.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

void check_all(ListCase& c) {
  const ListCase::Result want = c.run(attend_list_ref);
  for (const Isa isa : usable_isas()) {
    CAPTURE(isa_name(isa));
    CAPTURE(dtype_name(c.dtype));
    CAPTURE(c.d);
    REQUIRE(difference(c, c.run(attend_list_of(isa)), want) == "");
  }
}

constexpr DType kTypes[] = {DType::f32, DType::bf16};

}  // namespace

TEST_SUITE("kernels/attend_list") {
  TEST_CASE("every variant agrees with the reference, one segment of each kind") {
    for (const DType type : kTypes)
      for (const int d : {2, 20, 32, 64, 80, 96, 128, 256})
        for (const int count : {0, 1, 15, 16, 17, 63, 64, 65, 1000}) {
          CAPTURE(count);
          for (int kind = 0; kind < 3; ++kind) {
            CAPTURE(kind);
            ListCase c(type, count == 1000 ? 1203 : 130, d, kind == 0 ? 0 : 1);
            if (kind == 0) c.add(count);
            if (kind == 1) c.add_biased(count);
            if (kind == 2) c.add_weighted(count);
            check_all(c);
          }
        }
  }

  TEST_CASE("segments of mixed kinds and lengths, empty ones among them") {
    for (const DType type : kTypes)
      for (const int d : {64, 80, 128}) {
        ListCase c(type, 700, d);
        c.add(0);
        c.add(4);
        c.add_weighted(90);
        c.add_biased(0);
        c.add(64);
        c.add_biased(131);
        c.add_weighted(1);
        check_all(c);
      }
  }

  TEST_CASE("keys and values of eight bits: every variant agrees with the reference") {
    for (const DType type : kTypes)
      for (const int d : {2, 20, 32, 64, 80, 96, 128, 256})
        for (const int count : {0, 1, 15, 16, 17, 63, 64, 65, 1000}) {
          CAPTURE(count);
          ListCase c(type, count == 1000 ? 1203 : 130, d, 1);
          c.add(count);
          c.add_biased(count / 2);
          c.add_weighted(count);
          c.make_narrow();
          check_all(c);
        }
  }

  TEST_CASE("keys and values of eight bits: scores far apart, rows of zeros, rows of NaN") {
    for (const DType type : kTypes) {
      ListCase c(type, 700, 64);
      c.add_weighted(300);
      c.add_biased(300);
      for (float& bias : c.lists[1].bias) bias -= 1e4f;
      for (int i = 0; i < c.d; ++i) {
        c.k.set(c.at(c.lists[0].ids[7], i), 0.0f);
        c.v.set(c.at(c.lists[0].ids[9], i), 0.0f);
      }
      c.make_narrow();
      check_all(c);
      // A key that is no number has no weight, as one of f32.
      c.k.set(c.at(c.lists[1].ids[3], 5), NAN);
      c.make_narrow();
      for (const Isa isa : usable_isas()) {
        const ListCase::Result r = c.run(attend_list_of(isa));
        for (const float x : r.o) REQUIRE(std::isfinite(x));
      }
    }
  }

  // Keys and values uniform in (-1.5, 1.5) and (-1, 1), 1,000 of them attended: scores are off by
  // a scale times |q| / sqrt(12 d) or so, which is .003 here, the output by less.
  TEST_CASE("what eight bits change: an output by 1e-3 of the largest value, the lse by 1e-3") {
    for (const DType type : kTypes)
      for (const int d : {32, 64, 128}) {
        ListCase c(type, 1203, d);
        c.add(1000);
        const ListCase::Result want = c.run(attend_list_ref);
        c.make_narrow();
        const ListCase::Result got = c.run(attend_list_ref);
        double worst = 0, square = 0, norm = 0;
        for (size_t i = 0; i < want.o.size(); ++i) {
          const double error = double{got.o[i]} - want.o[i];
          worst = std::max(worst, std::abs(error));
          square += error * error;
          norm += double{want.o[i]} * want.o[i];
        }
        MESSAGE("d " << d << ": output off by " << worst / c.v_max << " of the largest value, "
                     << std::sqrt(square / norm) << " of its norm, lse by "
                     << std::abs(got.lse - want.lse));
        CHECK(worst <= 1e-3 * c.v_max);
        CHECK(std::abs(got.lse - want.lse) <= 1e-3);
      }
  }

  TEST_CASE("what a list is cut into does not matter") {
    for (const DType type : kTypes) {
      ListCase whole(type, 700, 64);
      whole.add(300);
      ListCase parts = whole;
      parts.lists.clear();
      const std::vector<int32_t>& ids = whole.lists[0].ids;
      int begin = 0;
      for (const int end : {0, 1, 70, 71, 200, 300}) {
        parts.lists.push_back({.ids = {ids.begin() + begin, ids.begin() + end}});
        begin = end;
      }
      const ListCase::Result want = whole.run(attend_list_ref);
      for (const Isa isa : usable_isas())
        CHECK(difference(whole, parts.run(attend_list_of(isa)), want) == "");
    }
  }

  TEST_CASE("pages that no list names may be gone") {
    for (const DType type : kTypes)
      for (const int d : {64, 80}) {
        ListCase c(type, 700, d);
        c.add_weighted(300);
        std::vector<int32_t>& ids = c.lists[0].ids;
        std::erase_if(ids, [](int32_t id) { return id < 64; });
        c.pages[0] = -1;
        check_all(c);
      }
  }

  TEST_CASE("no key: zeros and -inf") {
    for (const DType type : kTypes)
      for (const bool has_keys : {false, true}) {
        ListCase c(type, 100, 20);
        if (has_keys) {
          c.add_biased(40);
          for (float& bias : c.lists[0].bias) bias = -kInf;
        }
        for (const Isa isa : usable_isas()) {
          const ListCase::Result r = c.run(attend_list_of(isa));
          CHECK(r.lse == -kInf);
          for (const float x : r.o) CHECK(x == 0.0f);
        }
      }
  }

  TEST_CASE("some scores of -inf, in whole chunks and alone") {
    for (const DType type : kTypes) {
      ListCase c(type, 700, 64);
      c.add_biased(300);
      for (size_t i = 0; i < 300; ++i)
        if (i < 140 || i % 3 == 0) c.lists[0].bias[i] = -kInf;
      check_all(c);
    }
  }

  TEST_CASE("scores far apart: the largest alone counts") {
    for (const DType type : kTypes)
      for (const size_t largest : {0u, 77u, 299u})
        for (const float apart : {1e4f, 3e38f}) {
          ListCase c(type, 700, 64);
          c.add_biased(300);
          for (float& bias : c.lists[0].bias) bias = -apart;
          c.lists[0].bias[largest] = apart;
          check_all(c);
        }
  }

  TEST_CASE("products beyond the range of f32 leave numbers") {
    for (const DType type : kTypes)
      for (const bool weighted : {false, true})
        for (const float sign : {1.0f, -1.0f}) {
          ListCase c(type, 200, 64);
          if (weighted)
            c.add_weighted(100);
          else
            c.add(100);
          for (size_t i = 0; i < 64; ++i) c.q.set(i, sign * 1e30f);
          for (int t = 0; t < c.n; ++t) c.k.set(c.at(t, t % 64), t % 2 == 0 ? 1e30f : -1e30f);
          for (const Isa isa : usable_isas()) {
            const ListCase::Result r = c.run(attend_list_of(isa));
            for (const float x : r.o) REQUIRE(std::isfinite(x));
            REQUIRE(!std::isnan(r.lse));
          }
        }
  }

  TEST_CASE("weights at the ends of the table and without norms") {
    const auto scale_norms = [](ListCase& c, float factor) {
      for (float& norm : c.lists[0].norms) norm *= factor;
    };
    using Change = std::function<void(ListCase&)>;
    const Change changes[] = {
        [&](ListCase& c) { scale_norms(c, 0.01f); },   // cosines beyond 1
        [&](ListCase& c) { scale_norms(c, 1e-45f); },  // the norms' product underflows
        [&](ListCase& c) { scale_norms(c, 1e38f); },   // and overflows
        [&](ListCase& c) {
          for (size_t i = 0; i < 700; i += 2) c.lists[0].norms[i] = 0;
        },
        [&](ListCase& c) {  // constant keys, centred
          for (int t = 0; t < c.n; ++t)
            for (int i = 0; i < c.d; ++i) c.k.set(c.at(t, i), 0.0f);
          scale_norms(c, 0);
          c.q_center = 0;
        },
        [&](ListCase& c) {  // q = 0
          for (size_t i = 0; i < 64; ++i) c.q.set(i, 0.0f);
          c.q_center = 0;
        }};
    for (const DType type : kTypes)
      for (size_t i = 0; i < std::size(changes); ++i) {
        CAPTURE(i);
        ListCase c(type, 700, 64);
        c.add_weighted(300);
        changes[i](c);
        check_all(c);
      }
  }

  TEST_CASE("q = 0 gives the mean of the values") {
    ListCase c(DType::bf16, 700, 64);
    c.add_weighted(300);
    for (size_t i = 0; i < 64; ++i) c.q.set(i, 0.0f);
    c.q_center = 0;
    double mean = 0;
    for (const int id : c.lists[0].ids) mean += c.v.get(c.at(id, 5)) / 300;
    const float log_u = c.log_u[ListCase::kIntervals / 2];
    for (const Isa isa : usable_isas()) {
      const ListCase::Result r = c.run(attend_list_of(isa));
      CHECK(r.o[5] == doctest::Approx(mean).epsilon(1e-4));
      CHECK(r.lse == doctest::Approx(std::log(300.0) - log_u).epsilon(1e-6));
    }
  }

  TEST_CASE("bf16 beside f64 with the table of (10, 150): |lse| within 2e-3") {
    ListCase c(DType::bf16, 1203, 128);
    c.log_u = kv::log_u_table(10, 150, 2, 1e-4, ListCase::kIntervals);
    c.scale = 0.6f;  // sharp: scores of +-20
    c.add(4);
    c.add_weighted(600);
    const ListCase::Result want = c.run(attend_list_ref);
    for (const Isa isa : usable_isas()) {
      const ListCase::Result got = c.run(attend_list_of(isa));
      CHECK(std::abs(got.lse - want.lse) <= 2e-3);
      for (size_t i = 0; i < want.o.size(); ++i)
        CHECK(std::abs(got.o[i] - want.o[i]) <= 4e-3 * c.v_max);
    }
  }
}
