#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace tandem::ranks {

/// A TCP address as text: `name:port`, a name of a host or `[2001:db8::1]`.
struct Address {
  std::string host;
  uint16_t port = 0;

  std::string text() const;
};

/// errors   none: empty where the text is no `host:port`
std::optional<Address> parse_address(const std::string& text);

/// A TCP socket, closed with its owner. Waiting is bounded by the caller's seconds everywhere.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;

  /// Listens on this address alone; port 0: any that is free.
  /// errors   kind device: not an address of this machine, or in use
  static Socket listen_at(const Address& address);
  /// One attempt; not open where no process listens there.
  /// errors   kind device: no such host
  static Socket connect_to(const Address& address, double seconds);
  /// The next connection; not open where none comes in time.
  Socket accept(double seconds) const;

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  /// Its own end.
  Address address() const;

  /// false: the connection has ended, or too few bytes came or went in time.
  bool send(std::span<const std::byte> bytes, double seconds) const;
  bool receive(std::span<std::byte> bytes, double seconds) const;
  /// Wakes all that wait on it; nothing comes or goes any more.
  void shut_down() const;

 private:
  void close();

  int fd_ = -1;
};

/// Returns an address by which others reach this machine; without a network the loopback address.
std::string host_address();

}  // namespace tandem::ranks
