#include "base/parallel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <strings.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "base/bound_threads.h"
#include "base/idle.h"

namespace tandem {
namespace {

/// CPUs that the quota of the cgroup in a folder allows, of version 2 or 1; none without one.
std::optional<double> quota_in(const std::string& folder) {
  std::string quota;
  double period = 0;
  if (std::ifstream both(folder + "/cpu.max"); !(both >> quota >> period)) {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  const double time = std::strtod(quota.c_str(), nullptr);  // 0 of "max"
  return time > 0 && period > 0 ? std::optional(time / period) : std::nullopt;
}

/// The least quota of the process's cgroups and their ancestors in whole cores, at least one;
/// `cores` without any.
int quota_cores(int cores) {
  std::string line;
  for (std::ifstream groups("/proc/self/cgroup"); std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view all(line), group = all.substr(second + 1);
    const std::string controllers = fmt::format(",{},", all.substr(first + 1, second - first - 1));
    if (controllers != ",," && controllers.find(",cpu,") == std::string::npos) continue;
    const std::string root = controllers == ",," ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    for (size_t end = group.size(); end != std::string_view::npos;
         end = end > 0 ? group.rfind('/', end - 1) : std::string_view::npos)
      if (const auto quota = quota_in(fmt::format("{}{}", root, group.substr(0, end))))
        cores = std::clamp(static_cast<int>(std::ceil(*quota)), 1, cores);
  }
  return cores;
}

using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

/// How long a thread without work spins before it sleeps: longer where each has a core.
nanoseconds spin_time(bool bound) {
  constexpr nanoseconds kBrief = std::chrono::microseconds(50),
                        kLong = std::chrono::milliseconds(1);
  static const char* const policy = std::getenv("OMP_WAIT_POLICY");
  if (policy != nullptr && strcasecmp(policy, "passive") == 0) return nanoseconds(0);
  const bool active = policy != nullptr && strcasecmp(policy, "active") == 0;
  return active || bound ? kLong : kBrief;
}

/// Spins until `reached`; false when that took longer than `most`.
template <class Condition>
bool spin_until(nanoseconds most, const Condition& reached) {
  constexpr int kTurns = 16;  // between looks at the clock
  const auto begin = Clock::now();
  do {
    for (int i = 0; i < kTurns; ++i) {
      if (reached()) return true;
      pause_core();
    }
  } while (Clock::now() - begin < most);
  return reached();
}

/// The items of a loop that are left: which threads may take them, how many there are, the next.
struct Ticket {
  static constexpr int kItemBits = 20;
  static constexpr int kMostItems = (1 << kItemBits) - 1;

  int threads, n, next;

  static Ticket of(uint64_t word) {
    return {static_cast<int>(word >> (2 * kItemBits)),
            static_cast<int>(word >> kItemBits & kMostItems), static_cast<int>(word & kMostItems)};
  }
  uint64_t word() const {
    return static_cast<uint64_t>(threads) << (2 * kItemBits) |
           static_cast<uint64_t>(n) << kItemBits | static_cast<uint64_t>(next);
  }
  bool allows(int thread) const { return next < n && thread < threads; }
};

/// How many threads loops use while other processes want the cores. A thread that is taken off its
/// core in the middle of an item stops the loop for milliseconds, and so does the calling thread.
/// Where loops stand still for more than half of one thread's share of the time, they go on with
/// one thread less, and try it again later.
class Crowding {
 public:
  Crowding() : schedstat_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}
  ~Crowding() {
    if (schedstat_ >= 0) ::close(schedstat_);
  }
  Crowding(const Crowding&) = delete;
  Crowding& operator=(const Crowding&) = delete;

  /// Of `threads`, those to use now.
  int usable(int threads) {
    const auto now = Clock::now();
    if (now - last_ >= kSample) {
      const nanoseconds before = delayed_;
      delayed_ = delay();
      add(before.count() == 0 ? nanoseconds(0) : delayed_ - before, threads);
    }
    if (fewer_ > 0 && now >= retry_) {
      --fewer_;
      tried_ = now;
      retry_ = now + pause_;
    }
    return std::max(1, threads - fewer_);
  }
  /// A loop on `threads` threads stood still.
  void add(nanoseconds stopped, int threads) {
    const auto now = Clock::now();
    stopped_ = std::max(nanoseconds(0), stopped_ - (now - last_) / (2 * threads)) + stopped;
    last_ = now;
    if (stopped_ < kPatience || threads - fewer_ <= 1) return;
    stopped_ = nanoseconds(0);
    ++fewer_;
    pause_ = now - tried_ < pause_ ? std::min(2 * pause_, kMostPause) : kLeastPause;
    retry_ = now + pause_;
  }

 private:
  /// Time that the calling thread has waited for a core so far; 0 where the system does not say.
  nanoseconds delay() const {
    char text[64] = {};
    unsigned long long ran = 0, waited = 0;
    if (schedstat_ < 0 || ::pread(schedstat_, text, sizeof text - 1, 0) <= 0 ||
        std::sscanf(text, "%llu %llu", &ran, &waited) != 2)
      return nanoseconds(0);
    return nanoseconds(waited);
  }

  static constexpr nanoseconds kSample = std::chrono::milliseconds(2),
                               kPatience = std::chrono::milliseconds(4),
                               kLeastPause = std::chrono::milliseconds(20),
                               kMostPause = std::chrono::milliseconds(320);

  int schedstat_;
  int fewer_ = 0;
  nanoseconds delayed_{0}, stopped_{0}, pause_ = kLeastPause;
  Clock::time_point last_{}, tried_{}, retry_{};
};

/// CPU time of all threads of the process.
nanoseconds cpu_time() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return std::chrono::seconds(t.tv_sec) + nanoseconds(t.tv_nsec);
}

/// Whether the calling thread is inside a loop.
thread_local bool t_in_loop = false;

/// The threads that share the loops of one thread.
class Team {
 public:
  Team() = default;
  ~Team() {
    stop_.store(true);
    wake();
    // After a fork the child has this memory without these threads.
    for (std::thread& t : helpers_) owner_ == ::getpid() ? t.join() : t.detach();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int usable(int threads) { return crowding_.usable(threads); }

  void run(int n, int threads, const LoopBody& body) {
    grow(threads);
    body_ = body;
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(Ticket{threads, n, 0}.word(), std::memory_order_release);
    wake();
    t_in_loop = true;
    while (run_one(0)) continue;
    t_in_loop = false;
    if (spin_until(spin_.load(std::memory_order_relaxed),
                   [&] { return done_.load(std::memory_order_acquire) == n; }))
      return;
    const auto begin = Clock::now();
    const nanoseconds worked = cpu_time();
    for (int done = done_.load(std::memory_order_acquire); done < n;
         done = done_.load(std::memory_order_acquire))
      done_.wait(done, std::memory_order_acquire);
    const nanoseconds waited = Clock::now() - begin, stopped = waited - (cpu_time() - worked);
    if (2 * stopped > waited) crowding_.add(stopped, threads);
  }

  void bind(std::span<const int> cpus, bool each) {
    if (each) grow(static_cast<int>(cpus.size()));
    spin_ = spin_time(each);
    for (size_t i = 1; i <= helpers_.size(); ++i) {
      cpu_set_t set;
      CPU_ZERO(&set);
      for (size_t k = 0; k < cpus.size(); ++k)
        if (!each || k == i) CPU_SET(static_cast<size_t>(cpus[k]), &set);
      (void)pthread_setaffinity_np(helpers_[i - 1].native_handle(), sizeof set, &set);
    }
  }

 private:
  void grow(int threads) {
    while (static_cast<int>(helpers_.size()) + 1 < threads) try {
        helpers_.emplace_back(
            [this, thread = static_cast<int>(helpers_.size()) + 1] { help(thread); });
      } catch (const std::system_error&) {
        return;  // the system gives no more threads; those that are here do all items
      }
  }

  void wake() {
    loops_.fetch_add(1);
    loops_.notify_all();
  }

  bool has_item(int thread) const {
    return Ticket::of(ticket_.load(std::memory_order_relaxed)).allows(thread);
  }

  /// Takes an item and runs it; false when none is left for the thread.
  bool run_one(int thread) {
    uint64_t word = ticket_.load(std::memory_order_acquire);
    Ticket t = Ticket::of(word);
    do {
      t = Ticket::of(word);
      if (!t.allows(thread)) return false;
    } while (!ticket_.compare_exchange_weak(word, Ticket{t.threads, t.n, t.next + 1}.word(),
                                            std::memory_order_acq_rel, std::memory_order_acquire));
    body_.run(body_.body, t.next, thread);
    // The last one may end the loop: nothing of it is touched afterwards.
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == t.n && thread != 0) done_.notify_one();
    return true;
  }

  void help(int thread) {
    t_in_loop = true;
    while (!stop_.load(std::memory_order_relaxed)) {
      const uint32_t seen = loops_.load();
      while (run_one(thread)) continue;
      if (!spin_until(spin_.load(std::memory_order_relaxed),
                      [&] { return has_item(thread) || stop_.load(std::memory_order_relaxed); }))
        loops_.wait(seen);
    }
  }

  static constexpr size_t kLine = 64;

  LoopBody body_{};
  alignas(kLine) std::atomic<uint64_t> ticket_{0};
  alignas(kLine) std::atomic<int> done_{0};
  alignas(kLine) std::atomic<uint32_t> loops_{0};  // begun so far
  std::atomic<bool> stop_{false};
  std::atomic<nanoseconds> spin_{spin_time(false)};
  Crowding crowding_;
  std::vector<std::thread> helpers_;  // thread i + 1
  pid_t owner_ = ::getpid();
};

Team& team() {
  thread_local Team mine;
  return mine;
}

thread_local int t_threads = 0;  // 0: not set

}  // namespace

void set_threads(int n) { t_threads = std::max(1, n); }

int max_threads() { return t_threads > 0 ? t_threads : t_threads = default_threads(); }

int usable_cores() { return quota_cores(std::max(1, static_cast<int>(core_cpus().size()))); }

int default_threads() {
  const int cores = usable_cores();
  const char* const asked = std::getenv("OMP_NUM_THREADS");
  if (asked == nullptr) return cores;
  int n = 0;
  std::from_chars(asked, asked + std::strlen(asked), n);  // of a list the first, as OpenMP's
  return n > 0 ? std::min(n, cores) : cores;
}

void bind_loop_threads(std::span<const int> cpus, bool each) { team().bind(cpus, each); }

void run_loop(int n, int threads, const LoopBody& body) {
  if (n <= 0) return;
  const bool alone = n == 1 || threads <= 1 || t_in_loop;
  if (!alone) threads = team().usable(std::min(n, threads));
  if (alone || threads == 1) {
    for (int i = 0; i < n; ++i) body.run(body.body, i, 0);
    return;
  }
  if (n <= Ticket::kMostItems) return team().run(n, threads, body);
  struct Groups {
    const LoopBody& body;
    int n, size;
  } const groups{body, n, n / Ticket::kMostItems + 1};
  team().run((n - 1) / groups.size + 1, threads,
             {[](const void* p, int group, int thread) {
                const auto& g = *static_cast<const Groups*>(p);
                const int begin = group * g.size;
                for (int i = begin; i - begin < g.size && i < g.n; ++i)
                  g.body.run(g.body.body, i, thread);
              },
              &groups});
}

}  // namespace tandem
