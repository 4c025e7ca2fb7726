// How ranks find each other: all go to rank 0, which compares what they are asked to do and sends
// each the places of the others; then they link up in a ring.
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/clock.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/writer_lock.h"
#include "ranks/group.h"

namespace tandem::ranks {
namespace {

constexpr double kStrangerSeconds = 2;  // for the first words of a connection
constexpr double kLateSeconds = 2;      // that ranks come after one that does not fit
constexpr auto kPause = std::chrono::milliseconds(50);

struct Message {
  FrameType type;
  std::string body;
};

std::optional<Message> receive(const Socket& from, double seconds) {
  std::array<std::byte, kHeaderBytes> header_bytes;
  if (!from.receive(header_bytes, seconds)) return std::nullopt;
  const auto header = parse_header(header_bytes);
  if (!header) return std::nullopt;
  Message m{header->type, std::string(header->bytes, '\0')};
  if (!from.receive(std::as_writable_bytes(std::span(m.body)), seconds)) return std::nullopt;
  return m;
}

std::string name_of(int rank, const std::string& host, int64_t process) {
  return fmt::format("rank {} ({}, process {})", rank, host, process);
}

std::string new_name() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// The address in a rendezvous file; empty before rank 0 has written it.
std::optional<Address> read_address(const std::filesystem::path& path) {
  try {
    std::string text = io::read_file(path, 1024);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return parse_address(text);
  } catch (const Error&) {
    return std::nullopt;
  }
}

Error too_few(const Place& place, const std::string& who) {
  return make_error(ErrorKind::device, "run.rendezvous", "{}: after {:.0f} s {}", place.rendezvous,
                    place.timeout_s, who)
      .hint(
          "start all ranks with the same run.rendezvous and run.world_size, or raise run.timeout");
}

}  // namespace

void Group::join(const Facts& facts) {
  if (rank() == 0)
    receive_ranks(facts);
  else
    visit_rank0(facts);
}

void Group::receive_ranks(const Facts& facts) {
  const std::optional<Address> given = parse_address(place_.rendezvous);
  const Address at = given ? *given : Address{host_address(), 0};
  const Socket door = Socket::listen_at(at);
  const Socket ring = Socket::listen_at({door.address().host, 0});
  // A file appears whole, over one that an earlier run has left.
  if (!given) {
    io::AtomicFile file(place_.rendezvous);
    file.write(door.address().text() + "\n");
    file.commit();
  }
  const auto remove_file = [&] {
    std::error_code ignored;
    if (!given) std::filesystem::remove(place_.rendezvous, ignored);
  };
  std::vector<Hello> hellos(static_cast<size_t>(size()));
  hellos[0] = {.rank = 0,
               .size = size(),
               .process = ::getpid(),
               .host = io::host_name(),
               .ring = ring.address()};
  std::vector<Socket> sockets(static_cast<size_t>(size()));
  int missing = size() - 1;
  const auto refuse = [&](const Error& error, bool waits) {
    const std::string words = frame(FrameType::end, write_end(error));
    // Those that come a little later learn of it too.
    const Stopwatch clock;
    for (; waits && missing > 0 && clock.seconds() < kLateSeconds;)
      if (Socket s = door.accept(0.1); s.is_open() && receive(s, kStrangerSeconds)) {
        s.send(bytes_of(words), kStrangerSeconds);
        --missing;
      }
    remove_file();
    for (const Socket& s : sockets)
      if (s.is_open()) s.send(bytes_of(words), kStrangerSeconds);
    throw error;
  };
  const Stopwatch clock;
  while (missing > 0) {
    if (events_.interrupted && events_.interrupted())
      refuse(Error(ErrorKind::interrupted, "", "interrupted"), false);
    if (clock.seconds() > place_.timeout_s) {
      std::string absent;
      for (int r = 1; r < size(); ++r)
        if (!sockets[static_cast<size_t>(r)].is_open())
          absent += fmt::format("{}{}", absent.empty() ? "" : ", ", r);
      refuse(too_few(place_, fmt::format("{} of {} ranks are connected; missing: {}",
                                         size() - missing, size(), absent)),
             false);
    }
    Socket s = door.accept(0.1);
    if (!s.is_open()) continue;
    const auto message = receive(s, kStrangerSeconds);
    const auto hello =
        message && message->type == FrameType::hello ? parse_hello(message->body) : std::nullopt;
    if (!hello) continue;  // a stranger
    const auto r = static_cast<size_t>(hello->rank);
    const std::string who = name_of(hello->rank, hello->host, hello->process);
    const auto turn_away = [&](Error error) {
      const Error final = std::move(error);
      s.send(bytes_of(frame(FrameType::end, write_end(final))), kStrangerSeconds);
      --missing;
      refuse(final, true);
    };
    if (hello->size != size())
      turn_away(recipe_error("run.world_size", "is {} on {}, but {} on rank 0", hello->size, who,
                             size()));
    if (r == 0 || sockets[r].is_open())
      turn_away(recipe_error("run.rank", "{} has the same rank as {}", who,
                             name_of(hello->rank, hellos[r].host, hellos[r].process))
                    .hint("give each process its own rank, from 0"));
    if (const std::string unlike = difference(facts, hello->facts, hello->rank); !unlike.empty())
      turn_away(recipe_error("ranks", "{}", unlike)
                    .hint("start all ranks with the same program, recipe and flags"));
    hellos[r] = *hello;
    sockets[r] = std::move(s);
    --missing;
  }
  remove_file();
  Welcome welcome{.run = new_name()};
  for (const Hello& h : hellos) {
    welcome.rings.push_back(h.ring);
    welcome.hosts.push_back(h.host);
  }
  for (int r = 1; r < size(); ++r) {
    const auto i = static_cast<size_t>(r);
    sockets[i].send(bytes_of(frame(FrameType::welcome, write_welcome(welcome))), kStrangerSeconds);
    peers_.push_back({.rank = r,
                      .name = name_of(r, hellos[i].host, hellos[i].process),
                      .socket = std::move(sockets[i]),
                      .in = {}});
  }
  link_ring(welcome, ring);
}

void Group::visit_rank0(const Facts& facts) {
  const Stopwatch clock;
  const std::optional<Address> given = parse_address(place_.rendezvous);
  Socket rank0;
  std::optional<Message> answer;
  Socket ring;
  while (!answer) {
    poll(events_.interrupted);
    if (clock.seconds() > place_.timeout_s)
      throw too_few(place_,
                    rank0.is_open() ? "some ranks are not connected" : "rank 0 is not reachable");
    const std::optional<Address> at = given ? given : read_address(place_.rendezvous);
    if (at && !rank0.is_open()) rank0 = Socket::connect_to(*at, 1);
    if (!rank0.is_open()) {
      std::this_thread::sleep_for(kPause);
      continue;
    }
    if (!ring.is_open()) ring = Socket::listen_at({rank0.address().host, 0});
    const Hello hello{.rank = rank(),
                      .size = size(),
                      .process = ::getpid(),
                      .host = io::host_name(),
                      .ring = ring.address(),
                      .facts = facts};
    rank0.send(bytes_of(frame(FrameType::hello, write_hello(hello))), kStrangerSeconds);
    // It answers when all are there; where the connection ends before, it was another's.
    std::byte first{};
    while (true) {
      poll(events_.interrupted);
      if (clock.seconds() > place_.timeout_s) throw too_few(place_, "some ranks are not connected");
      const ssize_t n = ::recv(rank0.fd(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
      if (n > 0) answer = receive(rank0, kStrangerSeconds);
      if (n >= 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (!answer) rank0 = Socket();
  }
  if (answer->type == FrameType::end) {
    const std::optional<Error> error = parse_end(answer->body);
    throw Ended{exit_status(error ? error->kind() : ErrorKind::device)};
  }
  const auto welcome = parse_welcome(answer->body, size());
  if (!welcome)
    throw make_error(ErrorKind::device, "run.rendezvous",
                     "{}: another program answers, expected rank 0", place_.rendezvous);
  peers_.push_back({.rank = 0,
                    .name = fmt::format("rank 0 ({})", welcome->hosts[0]),
                    .socket = std::move(rank0),
                    .in = {}});
  link_ring(*welcome, ring);
}

void Group::link_ring(const Welcome& welcome, const Socket& listener) {
  run_ = welcome.run;
  for (int r = 0; r < size(); ++r)
    if (r != rank() &&
        welcome.hosts[static_cast<size_t>(r)] == welcome.hosts[static_cast<size_t>(rank())]) {
      ++local_size_;
      if (r < rank()) ++local_rank_;
    }
  const int after = (rank() + 1) % size(), before = (rank() + size() - 1) % size();
  const auto words = [&](int r) { return fmt::format("{} {:8}", welcome.run, r); };
  const Stopwatch clock;
  const auto left = [&] { return std::max(0.0, place_.timeout_s - clock.seconds()); };
  const Error failed =
      make_error(ErrorKind::device, "ranks", "rank {} and rank {} cannot reach each other", rank(),
                 after)
          .hint("open the firewall between the ranks: ranks other than 0 listen on free ports");
  next_ = Socket::connect_to(welcome.rings[static_cast<size_t>(after)], left());
  const std::string own = words(rank());
  if (!next_.is_open() || !next_.send(bytes_of(own), left())) throw failed;
  while (!before_.is_open()) {
    Socket s = listener.accept(left());
    if (!s.is_open()) throw failed;
    std::string said(own.size(), '\0');
    if (s.receive(std::as_writable_bytes(std::span(said)), kStrangerSeconds) &&
        said == words(before))
      before_ = std::move(s);
  }
}

}  // namespace tandem::ranks
