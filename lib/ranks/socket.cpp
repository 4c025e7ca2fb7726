#include "ranks/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "base/error.h"

namespace tandem::ranks {
namespace {

using Found = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// errors   kind device
Found look_up(const Address& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int code = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found); code != 0)
    throw make_error(ErrorKind::device, "run.rendezvous", "{}: {}", address.text(),
                     ::gai_strerror(code))
        .hint("give host:port that all ranks can reach, or a file that all ranks can access");
  return {found, &::freeaddrinfo};
}

void send_at_once(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Waits for an event; false when the time is over.
bool wait_for(int fd, short events, double seconds) {
  const Stopwatch clock;
  while (true) {
    const double left = seconds - clock.seconds();
    pollfd p{fd, events, 0};
    const int n = ::poll(&p, 1, left > 0 ? static_cast<int>(left * 1e3) + 1 : 0);
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

Address address_of(const sockaddr_storage& a) {
  char text[INET6_ADDRSTRLEN] = {};
  if (a.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(a);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    return {text, ntohs(v6.sin6_port)};
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(a);
  ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
  return {text, ntohs(v4.sin_port)};
}

}  // namespace

std::string Address::text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

std::optional<Address> parse_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  Address a{text.substr(0, colon), 0};
  if (a.host.size() > 2 && a.host.front() == '[' && a.host.back() == ']')
    a.host = a.host.substr(1, a.host.size() - 2);
  else if (a.host.find_first_of(":/") != std::string::npos)
    return std::nullopt;
  const char* const end = text.data() + text.size();
  const auto [last, code] = std::from_chars(text.data() + colon + 1, end, a.port);
  if (code != std::errc{} || last != end || a.port == 0) return std::nullopt;
  return a;
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Socket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Socket Socket::listen_at(const Address& address) {
  const Found found = look_up(address, AI_PASSIVE);
  int code = 0;
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    Socket s(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (s.is_open()) ::setsockopt(s.fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (s.is_open() && ::bind(s.fd_, a->ai_addr, a->ai_addrlen) == 0 &&
        ::listen(s.fd_, SOMAXCONN) == 0)
      return s;
    code = errno;
  }
  throw make_error(ErrorKind::device, "run.rendezvous", "cannot listen at {}: {}", address.text(),
                   std::strerror(code))
      .hint(code == EADDRINUSE
                ? "another program, perhaps another run, uses this port: choose another"
                : "give an address of the machine of rank 0, which listens there");
}

Socket Socket::connect_to(const Address& address, double seconds) {
  const Found found = look_up(address, 0);
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    Socket s(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!s.is_open()) continue;
    if (::connect(s.fd_, a->ai_addr, a->ai_addrlen) != 0) {
      if (errno != EINPROGRESS || !wait_for(s.fd_, POLLOUT, seconds)) continue;
      int code = 0;
      socklen_t size = sizeof code;
      if (::getsockopt(s.fd_, SOL_SOCKET, SO_ERROR, &code, &size) != 0 || code != 0) continue;
    }
    send_at_once(s.fd_);
    return s;
  }
  return {};
}

Socket Socket::accept(double seconds) const {
  if (!wait_for(fd_, POLLIN, seconds)) return {};
  Socket s(::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (s.is_open()) send_at_once(s.fd_);
  return s;
}

Address Socket::address() const {
  sockaddr_storage a{};
  socklen_t size = sizeof a;
  if (::getsockname(fd_, reinterpret_cast<sockaddr*>(&a), &size) != 0) return {};
  return address_of(a);
}

bool Socket::send(std::span<const std::byte> bytes, double seconds) const {
  const Stopwatch clock;
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN || !wait_for(fd_, POLLOUT, seconds - clock.seconds())) return false;
  }
  return true;
}

bool Socket::receive(std::span<std::byte> bytes, double seconds) const {
  const Stopwatch clock;
  while (!bytes.empty()) {
    const ssize_t n = ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
      continue;
    }
    if (n == 0) return false;
    if (errno == EINTR) continue;
    if (errno != EAGAIN || !wait_for(fd_, POLLIN, seconds - clock.seconds())) return false;
  }
  return true;
}

void Socket::shut_down() const {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

std::string host_address() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "127.0.0.1";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, &::freeifaddrs);
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    if ((i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0) continue;
    sockaddr_storage a{};
    std::memcpy(&a, i->ifa_addr, sizeof(sockaddr_in));
    return address_of(a).host;
  }
  return "127.0.0.1";
}

}  // namespace tandem::ranks
