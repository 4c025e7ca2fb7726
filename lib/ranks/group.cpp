#include "ranks/group.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/clock.h"

namespace tandem::ranks {
namespace {

constexpr double kBeatSeconds = 0.5;
/// How long a rank waits for the reason why no numbers come, and how long one that does not
/// notice a failure goes on.
constexpr double kReasonSeconds = 3, kStuckSeconds = 5;
constexpr double kFrameSeconds = 2;  // for a frame that fits into buffers

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Group::Group(const Place& place, const Facts& facts, Events events)
    : place_(place), events_(std::move(events)) {
  if (place_.alone()) return;
  join(facts);
  for (Peer& p : peers_) p.last_word = now();
  watcher_ = std::thread([this] { watch(); });
}

Group::~Group() {
  if (watcher_.joinable() && !finished_)
    leave(make_error(ErrorKind::device, "ranks", "rank {} exited", rank()));
  stop();
}

void Group::stop() {
  stopping_ = true;
  if (watcher_.joinable()) watcher_.join();
}

void Group::send_all(const std::string& bytes) {
  for (const Peer& p : peers_) p.socket.send(bytes_of(bytes), kFrameSeconds);
}

void Group::watch() {
  double beat = 0;
  bool said_interrupt = false;
  while (!stopping_) {
    std::vector<pollfd> all;
    for (const Peer& p : peers_) all.push_back({p.socket.fd(), POLLIN, 0});
    ::poll(all.data(), all.size(), 50);
    const std::unique_lock lock(mutex_);
    for (size_t i = 0; i < peers_.size(); ++i) {
      Peer& p = peers_[i];
      if (all[i].revents != 0 && !read(p) && !p.done && !failure_ && !leaving_)
        fail(make_error(ErrorKind::device, "ranks", "{} exited without an error message", p.name)
                 .hint("see the output of that rank, and start all ranks again"));
      if (!p.done && !failure_ && now() - p.last_word > place_.timeout_s)
        fail(make_error(ErrorKind::device, "ranks", "{} did not respond for {:.0f} s", p.name,
                        place_.timeout_s)
                 .hint("the rank or the network has failed: start all ranks again, or raise "
                       "run.timeout"));
    }
    if (now() - beat > std::min(kBeatSeconds, place_.timeout_s / 4)) {
      beat = now();
      send_all(frame(FrameType::beat));
    }
    if (rank() > 0 && !said_interrupt && events_.interrupted && events_.interrupted()) {
      said_interrupt = true;
      send_all(frame(FrameType::interrupt));
    }
    // Noticed or not: who unwinds may wait for a GPU, whose work waits for a rank that is gone.
    if (failure_ && now() - failed_at_ > kStuckSeconds && events_.stuck) events_.stuck(*failure_);
  }
}

bool Group::read(Peer& peer) {
  std::array<char, 4096> piece;
  while (true) {
    const ssize_t n = ::recv(peer.socket.fd(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    peer.last_word = now();
    peer.in.append(piece.data(), static_cast<size_t>(n));
    while (peer.in.size() >= kHeaderBytes) {
      const auto header = parse_header(bytes_of(peer.in).first<kHeaderBytes>());
      if (!header) return false;
      if (peer.in.size() < kHeaderBytes + header->bytes) break;
      take(peer, header->type, peer.in.substr(kHeaderBytes, header->bytes));
      peer.in.erase(0, kHeaderBytes + header->bytes);
    }
  }
}

void Group::take(Peer& peer, FrameType type, const std::string& body) {
  if (type == FrameType::interrupt) interrupt_asked_ = true;
  if (type == FrameType::done) {
    peer.done = true;
    changed_.notify_all();
  }
  if (type != FrameType::end || failure_) return;
  const std::optional<Error> error = parse_end(body);
  by_rank0_ = rank() > 0;
  if (!error) return fail(make_error(ErrorKind::device, "ranks", "{} exited", peer.name));
  // Ranks that learn of it from rank 0 leave the report to it.
  const std::string where = fmt::format("{}{}{}", rank() > 0 ? "rank 0" : peer.name,
                                        error->where().empty() ? "" : ": ", error->where());
  Error named(error->kind(), where, error->message());
  fail(error->hint_text().empty() ? std::move(named) : std::move(named).hint(error->hint_text()));
}

void Group::fail(const Error& error) {
  if (failure_) return;
  failure_ = error;
  failed_at_ = now();
  failed_ = true;
  if (rank() == 0) send_all(frame(FrameType::end, write_end(error)));
  next_.shut_down();
  before_.shut_down();
  changed_.notify_all();
}

void Group::throw_failure() {
  std::unique_lock lock(mutex_);
  const auto wait = std::chrono::duration<double>(kReasonSeconds);
  if (!changed_.wait_for(lock, wait, [&] { return failure_.has_value(); }))
    fail(Error(ErrorKind::device, "ranks", "the connection to another rank failed")
             .hint("start all ranks again"));
  leaving_ = true;  // noticed
  if (by_rank0_) throw Ended{exit_status(failure_->kind())};
  throw *failure_;
}

bool Group::leave(const Error& error) {
  std::unique_lock lock(mutex_);
  if (!watcher_.joinable() || finished_ || leaving_) return false;
  leaving_ = true;
  send_all(frame(FrameType::end, write_end(error)));
  // Until it has been read: a socket closed with bytes unread takes those with it that were sent.
  for (Peer& p : peers_) ::shutdown(p.socket.fd(), SHUT_WR);
  lock.unlock();
  const Stopwatch clock;
  const auto is_open = [&] {
    const std::unique_lock reading(mutex_);
    return std::ranges::any_of(peers_, [](const Peer& p) {
      char byte = 0;
      return !p.done && ::recv(p.socket.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
    });
  };
  while (clock.seconds() < 1 && is_open())
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return true;
}

bool Group::all_done() const {
  return std::ranges::all_of(peers_, [](const Peer& p) { return p.done; });
}

void Group::finish() {
  if (!watcher_.joinable()) return;
  std::unique_lock lock(mutex_);
  // Rank 0 is the last: what it still writes may fail.
  if (rank() > 0) send_all(frame(FrameType::done));
  changed_.wait(lock, [&] { return failure_ || all_done(); });
  if (failure_) {
    lock.unlock();
    throw_failure();
  }
  finished_ = true;
  if (rank() == 0) send_all(frame(FrameType::done));
  lock.unlock();
  stop();
}

void Group::run_flow(const Flow& flow) {
  size_t received = 0, sent = 0;
  int idle = 0;
  while (received < flow.in || sent < flow.out) {
    bool moved = false;
    if (received < flow.in) {
      const std::span<std::byte> to = flow.place(received);
      const ssize_t n = ::recv(before_.fd(), to.data(), to.size(), MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) throw_failure();
      if (n > 0) {
        flow.took(static_cast<size_t>(n));
        received += static_cast<size_t>(n);
        moved = true;
      }
    }
    const std::span<const std::byte> from =
        sent < flow.out ? flow.ready(sent) : std::span<const std::byte>{};
    if (!from.empty()) {
      const ssize_t n = ::send(next_.fd(), from.data(), from.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) throw_failure();
      if (n > 0) {
        sent += static_cast<size_t>(n);
        moved = true;
      }
    }
    if (failed_) throw_failure();
    if (moved) {
      idle = 0;
      continue;
    }
    constexpr int kSpins = 200;  // some tens of microseconds
    if (++idle < kSpins) continue;
    pollfd both[2] = {{before_.fd(), POLLIN, 0}, {next_.fd(), POLLOUT, 0}};
    if (received >= flow.in) both[0].fd = -1;
    if (from.empty()) both[1].fd = -1;
    ::poll(both, 2, 100);
  }
}

void Group::sum(std::span<float> x) {
  if (place_.alone() || x.empty()) return;
  // Sums go from rank 0 to the last, each adding its own; from there they go round to all.
  const std::span<std::byte> bytes = std::as_writable_bytes(x);
  const size_t n = bytes.size();
  const bool first = rank() == 0, last = rank() == size() - 1;
  const size_t in_sums = first ? 0 : n, out_sums = last ? 0 : n;
  size_t came = 0, added = first ? n : 0, whole = 0;  // bytes; of sums that are complete
  alignas(float) std::array<std::byte, size_t{64} << 10> piece;
  size_t held = 0;  // of the piece
  Flow flow{.in = in_sums + (last ? 0 : n),
            .out = out_sums + (last || rank() + 1 < size() - 1 ? n : 0)};
  flow.place = [&](size_t received) -> std::span<std::byte> {
    if (received >= in_sums) return bytes.subspan(received - in_sums);
    return std::span(piece).subspan(held).first(std::min(piece.size() - held, n - received));
  };
  flow.took = [&](size_t k) {
    came += k;
    if (came > in_sums) {
      whole = came - in_sums;
      return;
    }
    held += k;
    const size_t numbers = held / sizeof(float), used = numbers * sizeof(float);
    const auto* from = reinterpret_cast<const float*>(piece.data());
    float* to = x.data() + added / sizeof(float);
    for (size_t i = 0; i < numbers; ++i) to[i] = from[i] + to[i];
    added += used;
    held -= used;
    std::memmove(piece.data(), piece.data() + used, held);
  };
  flow.ready = [&](size_t sent) -> std::span<const std::byte> {
    if (sent < out_sums) return bytes.first(added).subspan(std::min(sent, added));
    const size_t complete = last ? added : whole, at = sent - out_sums;
    return bytes.first(complete).subspan(std::min(at, complete));
  };
  run_flow(flow);
}

void Group::gather(std::byte* all, size_t bytes) {
  if (place_.alone() || bytes == 0) return;
  // Blocks go round, each rank's own first.
  const auto block = [&](size_t nth) {
    return all + static_cast<size_t>(rank() + 2 * size() - static_cast<int>(nth)) %
                     static_cast<size_t>(size()) * bytes;
  };
  const size_t total = static_cast<size_t>(size() - 1) * bytes;
  size_t came = 0;
  run_flow({.in = total,
            .out = total,
            .place =
                [&](size_t received) {
                  const size_t at = received % bytes;
                  return std::span(block(received / bytes + 1) + at, bytes - at);
                },
            .took = [&](size_t k) { came += k; },
            .ready = [&](size_t sent) -> std::span<const std::byte> {
              const size_t at = sent % bytes, limit = bytes + came;
              if (sent >= limit) return {};
              return std::span(block(sent / bytes) + at, std::min(bytes - at, limit - sent));
            }});
}

void Group::broadcast(std::span<std::byte> bytes) {
  if (place_.alone() || bytes.empty()) return;
  size_t here = rank() == 0 ? bytes.size() : 0;
  run_flow({.in = rank() == 0 ? 0 : bytes.size(),
            .out = rank() == size() - 1 ? 0 : bytes.size(),
            .place = [&](size_t received) { return bytes.subspan(received); },
            .took = [&](size_t k) { here += k; },
            .ready = [&](size_t sent) -> std::span<const std::byte> {
              return bytes.first(here).subspan(std::min(sent, here));
            }});
}

std::string Group::agree_text(const std::string& mine) {
  std::string text = mine;
  text.resize(agree(uint64_t{mine.size()}));
  broadcast(std::as_writable_bytes(std::span(text)));
  return text;
}

double Group::sum_of(double mine) {
  double sum = 0;
  for (const double x : from_all(mine)) sum += x;
  return sum;
}

double Group::least_of(double mine) { return std::ranges::min(from_all(mine)); }

bool Group::agree_interrupted() {
  const bool asked = events_.interrupted && events_.interrupted();
  return agree(static_cast<uint8_t>(rank() == 0 && (asked || interrupt_asked_))) != 0;
}

void Group::require_equal(const std::string& name, const std::string& value) {
  if (place_.alone()) return;
  constexpr size_t kBytes = 128;
  std::vector<std::byte> all(kBytes * static_cast<size_t>(size()));
  const auto own = std::span(all).subspan(kBytes * static_cast<size_t>(rank()), kBytes);
  std::memcpy(own.data(), value.data(), std::min(value.size(), kBytes - 1));
  gather(all.data(), kBytes);
  if (rank() > 0) return;
  const auto text = [&](int r) {
    return std::string(reinterpret_cast<const char*>(all.data()) + kBytes * static_cast<size_t>(r));
  };
  for (int r = 1; r < size(); ++r)
    if (text(r) != text(0))
      throw input_error(name, "is {} on rank {}, but {} on rank 0", text(r), r, text(0))
          .hint("give all ranks the same files");
}

}  // namespace tandem::ranks
