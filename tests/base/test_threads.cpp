// Threads that share work: bound to cores, dividing blocks, failing.
#include <doctest/doctest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/bound_threads.h"
#include "base/clock.h"
#include "base/first_error.h"
#include "base/idle.h"
#include "base/parallel.h"
#include "base/shared_blocks.h"

using namespace tandem;

namespace {

/// CPUs that a thread may run on.
std::vector<int> allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  return cpus;
}

/// The same of each of the calling thread's team.
std::vector<std::vector<int>> allowed_of_team() {
  const int n = max_threads();
  std::vector<std::vector<int>> of(static_cast<size_t>(n));
  // A loop does not wait for threads that do not come: it is run until each has. Beside other
  // processes some may never; they are left empty.
  const Stopwatch watch;
  while (watch.seconds() < 5 && std::ranges::count(of, std::vector<int>{}) > 0)
    parallel_for(n, [&](int, int thread) {
      of[static_cast<size_t>(thread)] = allowed();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    });
  return of;
}

/// True if each thread that came both times may run on the same CPUs.
bool same_cpus(const std::vector<std::vector<int>>& a, const std::vector<std::vector<int>>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!a[i].empty() && !b[i].empty() && a[i] != b[i]) return false;
  return !a[0].empty() && !b[0].empty();
}

class Threads {
 public:
  explicit Threads(int n) { set_threads(n); }
  ~Threads() { set_threads(before_); }

 private:
  int before_ = max_threads();
};

}  // namespace

TEST_SUITE("base/threads") {
  TEST_CASE("each but the first is bound to one core, and free again afterwards") {
    const int n = static_cast<int>(core_cpus().size());
    if (n < 2) {
      MESSAGE("skipped: one core");
      return;
    }
    const Threads threads(n);
    const auto before = allowed_of_team();
    {
      const BoundThreads bound;
      REQUIRE(bound.bound());
      CHECK(usable_cores() <= n);
      const auto of = allowed_of_team();
      CHECK(of[0] == before[0]);
      std::set<int> taken;
      for (size_t i = 1; i < of.size(); ++i) {
        if (of[i].empty()) continue;
        REQUIRE(of[i].size() == 1);
        CHECK(taken.insert(of[i][0]).second);
      }
      CHECK_FALSE(taken.contains(core_cpus()[0]));
    }
    CHECK(same_cpus(allowed_of_team(), before));
  }

  TEST_CASE("nothing is bound with one thread, or with more threads than cores") {
    const int cores = static_cast<int>(core_cpus().size());
    for (const int n : {1, cores + 1}) {
      CAPTURE(n);
      const Threads threads(n);
      const auto before = allowed_of_team();
      const BoundThreads bound;
      CHECK_FALSE(bound.bound());
      CHECK(same_cpus(allowed_of_team(), before));
    }
  }

  TEST_CASE("blocks are taken once each by any thread, offer after offer") {
    constexpr int kThreads = 4, kOffers = 2000;
    SharedBlocks shared;
    std::atomic<bool> over{false};
    std::vector<std::atomic<int>> taken(64);
    std::atomic<int> wrong{0};
    const auto take_one = [&] {
      const int block = shared.take();
      if (block < 0) return false;
      taken[static_cast<size_t>(block)].fetch_add(1);
      shared.finish();
      return true;
    };
    std::vector<std::thread> helpers;
    for (int i = 1; i < kThreads; ++i)
      helpers.emplace_back([&] {
        Idle idle;
        while (!over.load())
          if (!take_one()) idle.wait();
      });
    for (int offer = 0; offer < kOffers; ++offer) {
      const int n = offer % 65;
      shared.offer(n);
      while (take_one()) continue;
      Idle idle;
      while (!shared.all_done()) idle.wait();
      for (int i = 0; i < 64; ++i)
        if (taken[static_cast<size_t>(i)].exchange(0) != (i < n ? 1 : 0)) wrong.fetch_add(1);
    }
    over = true;
    for (std::thread& helper : helpers) helper.join();
    CHECK(wrong.load() == 0);
  }

  TEST_CASE(
      "an error of a loop's thread comes out of the loop, and the next loop is as any other") {
    constexpr int kItems = 100;
    const auto run = [](int failing) {
      std::vector<std::atomic<int>> done(kItems);
      const auto item = [&](int i) {
        if (i == failing) throw std::runtime_error("an item");
        done[static_cast<size_t>(i)].fetch_add(1);
      };
      parallel_for(kItems, item);
      parallel_ranges(kItems, 1, [&](int begin, int end) {
        for (int i = begin; i < end; ++i) item(i);
      });
      return static_cast<int>(std::ranges::count_if(done, [](const auto& n) { return n == 2; }));
    };
    for (const int n : {1, 2, static_cast<int>(core_cpus().size()) + 3}) {
      CAPTURE(n);
      const Threads threads(n);
      for (const int failing : {0, 57, kItems - 1}) {
        CHECK_THROWS_WITH_AS(run(failing), "an item", std::runtime_error);
        CHECK(run(kItems) == kItems);
      }
    }
    CHECK_THROWS_WITH_AS(
        parallel_ranges(kItems, 10, [](int, int) { throw std::runtime_error("a range"); }),
        "a range", std::runtime_error);
  }

  TEST_CASE("each item of a loop runs once, and no two at once have one thread number") {
    for (const int n_threads : {1, 2, 3, static_cast<int>(core_cpus().size()) + 2}) {
      CAPTURE(n_threads);
      const Threads threads(n_threads);
      std::atomic<int> wrong{0};
      for (int loop = 0; loop < 500; ++loop) {
        const int n = loop % 41, most = 1 + loop % n_threads;
        std::vector<std::atomic<int>> ran(41), busy(static_cast<size_t>(n_threads));
        parallel_for(n, most, [&](int i, int thread) {
          if (thread >= most || busy[static_cast<size_t>(thread)].fetch_add(1) != 0) ++wrong;
          ran[static_cast<size_t>(i)].fetch_add(1);
          busy[static_cast<size_t>(thread)].fetch_sub(1);
        });
        for (int i = 0; i < 41; ++i)
          if (ran[static_cast<size_t>(i)].load() != (i < n ? 1 : 0)) ++wrong;
      }
      CHECK(wrong.load() == 0);
    }
  }

  TEST_CASE("more items than a ticket counts run once each") {
    const Threads threads(2);
    constexpr int kItems = (1 << 21) + 3;
    std::vector<uint8_t> ran(kItems);
    parallel_for(kItems, [&](int i) { ++ran[static_cast<size_t>(i)]; });
    CHECK(std::ranges::all_of(ran, [](uint8_t n) { return n == 1; }));
  }

  TEST_CASE("a loop inside a loop runs on its own thread, as thread 0") {
    const Threads threads(3);
    std::atomic<int> wrong{0}, ran{0};
    parallel_for(6, [&](int) {
      const auto mine = std::this_thread::get_id();
      parallel_for(4, [&](int, int thread) {
        if (thread != 0 || std::this_thread::get_id() != mine) ++wrong;
        ++ran;
      });
    });
    CHECK(wrong.load() == 0);
    CHECK(ran.load() == 24);
  }

  TEST_CASE("a loop does not wait for a thread that takes no item") {
    const Threads threads(2);
    std::atomic<pthread_t> other{};
    while (other == pthread_t{})
      parallel_for(2, [&](int, int thread) {
        if (thread == 1) other = pthread_self();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      });
    // A signal's handler holds the other thread, as a busy machine would.
    static std::atomic<int> held;  // 1: it is, 2: let go
    held = 0;
    struct sigaction action {};
    struct sigaction before {};
    action.sa_handler = [](int) {
      held = 1;
      while (held == 1) ::sched_yield();
    };
    REQUIRE(sigaction(SIGUSR1, &action, &before) == 0);
    REQUIRE(pthread_kill(other, SIGUSR1) == 0);
    while (held == 0) ::sched_yield();
    int ran = 0;  // by this thread alone
    for (int loop = 0; loop < 100; ++loop) parallel_for(8, [&](int) { ++ran; });
    CHECK(ran == 800);
    held = 2;
    sigaction(SIGUSR1, &before, nullptr);
  }

  TEST_CASE("loops leave out a thread that other processes keep off its core, and try it again") {
    const Threads threads(2);
    using std::chrono::milliseconds;
    using Clock = std::chrono::steady_clock;
    /// Whether both threads came to a loop, in which the other sleeps: it then uses its core as
    /// little as one that has none.
    const auto both_come = [](milliseconds sleep) {
      std::atomic<bool> came{false};
      parallel_for(2, [&](int, int thread) {
        if (thread == 1) {
          came = true;
          std::this_thread::sleep_for(sleep);
        }
        for (const auto begin = Clock::now(); !came && Clock::now() - begin < milliseconds(2);)
          ::sched_yield();
      });
      return came.load();
    };
    bool checked = false;
    for (const Stopwatch watch; watch.seconds() < 10 && !checked;) {
      if (!both_come(milliseconds(60))) continue;
      // The pause is 20 ms or more: who is stopped himself for so long cannot tell.
      const auto begin = Clock::now();
      const bool came = both_come(milliseconds(0));
      checked = Clock::now() - begin < milliseconds(15);
      if (checked) CHECK_FALSE(came);
    }
    if (!checked) MESSAGE("skipped: other processes leave this one a single core");
    bool again = false;
    for (const Stopwatch watch; watch.seconds() < 10 && !again;) {
      std::this_thread::sleep_for(milliseconds(1));
      again = both_come(milliseconds(0));
    }
    CHECK((again || !checked));
  }

  TEST_CASE("a child of fork runs its loops, and ends") {
    const Threads threads(2);
    parallel_for(8, [](int) {});
    const pid_t child = ::fork();
    if (child == 0) {
      std::atomic<int> ran{0};
      parallel_for(8, [&](int) { ++ran; });
      std::exit(ran == 8 ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }

  TEST_CASE("the first error of a team is kept, and nothing runs after it") {
    FirstError error;
    int ran = 0;
    error.run([&] { ++ran; });
    CHECK_FALSE(error.failed());
    CHECK_NOTHROW(error.rethrow());
    error.run([] { throw std::runtime_error("first"); });
    error.run([&] { ++ran; });
    CHECK(ran == 1);
    CHECK(error.failed());
    CHECK_THROWS_WITH_AS(error.rethrow(), "first", std::runtime_error);
  }
}
