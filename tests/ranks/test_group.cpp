// Ranks that meet, add up numbers, and end together.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>

#include "base/clock.h"
#include "base/rng.h"
#include "error_text.h"
#include "ranks/rank_threads.h"

using namespace tandem;
using namespace tandem::test;
using ranks::Group;

namespace {

/// Numbers of a rank whose sums depend on the order.
std::vector<float> numbers(int rank, size_t n) {
  PhiloxStream draw(static_cast<uint64_t>(rank) * 1000 + n);
  std::vector<float> x(n);
  for (float& v : x)
    v = static_cast<float>((draw.uniform() - 0.5) * (draw.below(4) == 0 ? 1e6 : 1));
  return x;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

void wait_some(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

TEST_SUITE("ranks/group") {
  TEST_CASE("sums are those in the order of ranks, bit for bit, of any number of ranks") {
    for (const int size : {1, 2, 3, 5}) {
      CAPTURE(size);
      std::atomic<int> right = 0;
      const size_t lengths[] = {1, 7, 4096, 100'003, 0, 1'000'000};
      const auto results = run_ranks({.size = size}, [&](Group& g) {
        for (const size_t n : lengths) {
          std::vector<float> want = numbers(0, n);
          for (int r = 1; r < size; ++r) {
            const std::vector<float> x = numbers(r, n);
            for (size_t i = 0; i < n; ++i) want[i] += x[i];
          }
          std::vector<float> x = numbers(g.rank(), n);
          g.sum(x);
          right += same_bits(x, want) ? 1 : 0;
        }
      });
      for (const RankResult& r : results) CHECK(r.text == "");
      CHECK(right == size * static_cast<int>(std::size(lengths)));
    }
  }

  TEST_CASE("parts of all ranks to all, rank 0's to all, and what rank 0 decides") {
    for (const int size : {1, 2, 4}) {
      CAPTURE(size);
      std::atomic<int> right = 0;
      const auto results = run_ranks({.size = size}, [&](Group& g) {
        for (const size_t bytes : {size_t{3}, size_t{200'000}}) {
          std::vector<std::byte> all(bytes * static_cast<size_t>(size));
          const auto value = [&](int r, size_t i) {
            return static_cast<std::byte>(static_cast<size_t>(r) * 31 + i * 7);
          };
          for (size_t i = 0; i < bytes; ++i)
            all[static_cast<size_t>(g.rank()) * bytes + i] = value(g.rank(), i);
          g.gather(all.data(), bytes);
          bool same = true;
          for (int r = 0; r < size; ++r)
            for (size_t i = 0; i < bytes; ++i)
              same = same && all[static_cast<size_t>(r) * bytes + i] == value(r, i);
          std::vector<std::byte> first(bytes, value(g.rank(), 5));
          g.broadcast(first);
          for (const std::byte b : first) same = same && b == value(0, 5);
          const std::string text = g.rank() == 0 ? "of rank 0" : "";
          same = same && g.agree_text(text) == "of rank 0";
          same = same && g.sum_of(0.5 + g.rank()) == 0.5 * size * size;
          same = same && g.least_of(3.0 - g.rank()) == 4.0 - size;
          right += same && g.agree(100 + g.rank()) == 100 ? 1 : 0;
        }
        CHECK(g.local_size() == size);
        CHECK(g.local_rank() == g.rank());
      });
      for (const RankResult& r : results) CHECK(r.text == "");
      CHECK(right == 2 * size);
    }
  }

  TEST_CASE("ranks that are asked for other things do not begin: rank 0 says which") {
    const auto facts = [](int r) {
      return ranks::Facts{{"run.seed", r == 2 ? "2" : "1"}, {"version", "1"}};
    };
    std::atomic<int> began = 0;
    const auto results = run_ranks({.size = 3, .facts = facts}, [&](Group&) { ++began; });
    CHECK(began == 0);
    CHECK(results[0].text == "ranks: run.seed is 2 on rank 2, but 1 on rank 0");
    CHECK(results[0].kind == ErrorKind::recipe);
    CHECK(results[1].text == "ended 3");
    CHECK(results[2].text == "ended 3");
    CHECK(ranks::difference({{"a", "1"}}, {{"a", "1"}, {"b", "2"}}, 1) ==
          "b is 2 on rank 1, but not set on rank 0");
    CHECK(ranks::difference({{"a", "1"}}, {{"a", "1"}}, 1) == "");
  }

  TEST_CASE("values that turn out unlike later end all") {
    const auto results = run_ranks({.size = 3}, [&](Group& g) {
      g.require_equal("model", "tiny");
      g.require_equal("prompt", g.rank() == 1 ? "b" : "a");
      g.agree(0);
    });
    CHECK(results[0].text == "prompt: is b on rank 1, but a on rank 0");
    CHECK(results[0].kind == ErrorKind::input);
    CHECK(results[1].text == "ended 4");
    CHECK(results[2].text == "ended 4");
  }

  TEST_CASE("an error of any rank ends all, and rank 0 reports it") {
    for (const int who : {0, 1, 2}) {
      CAPTURE(who);
      const Stopwatch clock;
      const auto results = run_ranks({.size = 3}, [&](Group& g) {
        (void)g.agree(1);
        if (g.rank() == who) throw input_error("file", "is not there").hint("make one");
        std::vector<float> x(1000);
        g.sum(x);
      });
      CHECK(clock.seconds() < 5);
      const auto place = static_cast<size_t>(who);
      CHECK(results[place].text == "file: is not there");
      if (who > 0) {
        CHECK(results[0].text.starts_with("rank " + std::to_string(who)));
        CHECK(results[0].text.ends_with(": file: is not there"));
        CHECK(results[0].kind == ErrorKind::input);
      }
      for (size_t r = 1; r < 3; ++r)
        if (r != place) CHECK(results[r].text == "ended 4");
    }
  }

  TEST_CASE("one that finishes while another goes on does not end it, nor its failure go unseen") {
    const auto results = run_ranks({.size = 2}, [&](Group& g) {
      if (g.rank() == 0) wait_some(0.3);
    });
    CHECK(results[0].text == "");
    CHECK(results[1].text == "");
    const auto failed = run_ranks({.size = 2}, [&](Group& g) {
      if (g.rank() > 0) return;
      wait_some(0.3);
      throw input_error("disk", "is full");
    });
    CHECK(failed[0].text == "disk: is full");
    CHECK(failed[1].text == "ended 4");
  }

  TEST_CASE("a signal at any rank asks all, at the same step") {
    for (const int who : {0, 1}) {
      std::atomic<int> steps[2] = {0, 0};
      std::atomic<bool> asked = false;
      const auto results = run_ranks(
          {.size = 2, .interrupted = [&](int r) { return r == who && asked; }}, [&](Group& g) {
            while (!g.agree_interrupted()) {
              if (++steps[g.rank()] == 20 && g.rank() == who) asked = true;
              wait_some(0.01);
            }
          });
      CHECK(results[0].text == "");
      CHECK(results[1].text == "");
      CHECK(steps[0] == steps[1]);
      CHECK(steps[0] >= 20);
      CHECK(steps[0] < 100);
    }
  }

  TEST_CASE("a rendezvous that no rank joins, and ranks that are missing") {
    const TemporaryFolder folder;
    const auto alone = [&](int rank, int size, const std::string& where) {
      return error_text([&] {
        Group({.rank = rank, .size = size, .rendezvous = where, .timeout_s = 0.5}, {}, {});
      });
    };
    CHECK(alone(0, 2, "127.0.0.1:29701") ==
          "run.rendezvous: 127.0.0.1:29701: after 0 s 1 of 2 ranks are connected; missing: 1");
    CHECK(alone(1, 2, "127.0.0.1:29701") ==
          "run.rendezvous: 127.0.0.1:29701: after 0 s rank 0 is not reachable");
    CHECK(alone(1, 2, (folder / "f").string()).ends_with("rank 0 is not reachable"));
    CHECK(alone(0, 2, "no.such.host.invalid:29701").starts_with("run.rendezvous: no.such.host"));
    CHECK(alone(0, 2, "192.0.2.1:29701").starts_with("run.rendezvous: cannot listen at 192.0.2.1"));
    const ranks::Socket taken = ranks::Socket::listen_at({"127.0.0.1", 29702});
    CHECK(alone(0, 2, "127.0.0.1:29702") ==
          "run.rendezvous: cannot listen at 127.0.0.1:29702: Address already in use");
    CHECK(!std::filesystem::exists(folder / "f"));
  }

  TEST_CASE(
      "a process that has noticed a failure, and is still there after some seconds, is ended") {
    const TemporaryFolder folder;
    std::atomic<int> ended = 0;
    std::thread other([&] {
      Group g({.rank = 1, .size = 2, .rendezvous = (folder / "meet").string()}, {}, {});
      (void)g.agree(1);
    });
    {
      Group g({.rank = 0, .size = 2, .rendezvous = (folder / "meet").string()}, {},
              {.stuck = [&](const Error& e) {
                ended += std::string(e.what()).find("rank 1 ") != std::string::npos ? 1 : 0;
              }});
      CHECK(error_text([&] {
              while (true) (void)g.agree(1);
            }).find("rank 1 ") != std::string::npos);
      wait_some(6);  // as destructors do that wait for a GPU
    }
    other.join();
    CHECK(ended > 0);
  }

  TEST_CASE("strangers at the door, and a file that an earlier run has left, stop no rank") {
    const TemporaryFolder folder;
    const std::string file = (folder / "meet").string();
    std::ofstream(file) << "127.0.0.1:1\n";  // where no process listens
    std::vector<std::string> texts(2);
    std::vector<std::thread> threads;
    std::atomic<bool> over = false;
    for (int r : {1, 0})
      threads.emplace_back([&, r] {
        if (r == 0) wait_some(0.3);
        texts[static_cast<size_t>(r)] = error_text([&] {
          Group g({.rank = r, .size = 2, .rendezvous = file, .timeout_s = 20}, {}, {});
          (void)g.agree(1);
          g.finish();
        });
      });
    threads.emplace_back([&] {
      while (!over) {
        std::string text;
        std::getline(std::ifstream(file), text);
        const auto at = ranks::parse_address(text);
        if (!at || at->port == 1) continue;
        const ranks::Socket s = ranks::Socket::connect_to(*at, 1);
        if (!s.is_open()) continue;
        const std::string words = "GET / HTTP/1.1\r\n\r\n";
        s.send(std::as_bytes(std::span(words)), 1);
        break;
      }
    });
    threads[0].join();
    threads[1].join();
    over = true;
    threads[2].join();
    CHECK(texts[0] == "nothing thrown");
    CHECK(texts[1] == "nothing thrown");
    CHECK(!std::filesystem::exists(file));
  }

  TEST_CASE("unlike sizes, and a rank that is there twice") {
    const TemporaryFolder folder;
    const std::string file = (folder / "meet").string();
    const auto start = [&](int rank, int size, std::string& text) {
      return std::thread([&, rank, size] {
        try {
          Group g({.rank = rank, .size = size, .rendezvous = file, .timeout_s = 5}, {}, {});
          text = "met";
        } catch (const Error& e) {
          text = e.what();
        } catch (const ranks::Ended& e) {
          text = "ended " + std::to_string(e.status);
        }
      });
    };
    std::string a, b, c;
    std::thread first = start(0, 2, a), second = start(1, 3, b);
    first.join();
    second.join();
    CHECK(a.find("run.world_size: is 3 on rank 1 (") == 0);
    CHECK(a.ends_with("2 on rank 0"));
    CHECK(b == "ended 3");
    first = start(0, 3, a), second = start(1, 3, b);
    std::thread third = start(1, 3, c);
    for (std::thread* t : {&first, &second, &third}) t->join();
    CHECK(a.find("has the same rank as") != std::string::npos);
    CHECK(b == "ended 3");
    CHECK(c == "ended 3");
  }
}
