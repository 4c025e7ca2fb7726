#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/interrupt.h"
#include "ranks/frames.h"
#include "ranks/launch.h"
#include "ranks/socket.h"

namespace tandem::ranks {

/// Thrown on ranks other than 0 where the run has ended for a reason that rank 0 reports. Not an
/// std::exception: nothing but the frame of a tool should stop it.
struct Ended {
  int status;
};

/// All processes of a run, seen from one of them. Every rank is linked with rank 0, to know whether
/// it lives and why it ends, and with the ranks before and after it, for numbers. All ranks call
/// the operations on numbers in the same order; where one has ended or is silent for too long, they
/// throw what rank 0 says of it, within the timeout and some seconds.
class Group {
 public:
  struct Events {
    /// Whether a signal has asked this process for an end.
    Interrupted interrupted = {};
    /// The run has failed, and this process is still there some seconds later (it waits for a GPU,
    /// or computes): reports it and ends the process.
    std::function<void(const Error&)> stuck = {};
  };

  /// Meets the others at place.rendezvous.
  /// facts    what must be equal on all ranks
  /// errors   kind device: no rank comes in time, an address that is none, a port in use; kind
  ///          recipe: ranks that do not fit together, as rank 0 reports (the others throw Ended);
  ///          kind interrupted
  Group(const Place& place, const Facts& facts, Events events);
  /// Ranks that have not finished end with it.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  const Place& place() const { return place_; }
  /// Ranks on this machine, and how many of them come before this one.
  int local_size() const { return local_size_; }
  int local_rank() const { return local_rank_; }
  /// A name that no other run has.
  const std::string& run() const { return run_; }

  /// Adds the ranks' numbers in the order of ranks: the same bits on all.
  void sum(std::span<float> x);
  /// Each rank's part, to all ranks.
  /// shapes   all [size][bytes], with the own part in its place
  void gather(std::byte* all, size_t bytes);
  /// Rank 0's bytes, to all.
  void broadcast(std::span<std::byte> bytes);
  /// Rank 0's number, for what a clock or a signal decides.
  template <class T>
  T agree(T mine) {
    broadcast(std::as_writable_bytes(std::span(&mine, 1)));
    return mine;
  }
  /// Every rank's value of a type that is bytes.
  template <class T>
  std::vector<T> from_all(const T& mine) {
    std::vector<T> all(static_cast<size_t>(size()));
    all[static_cast<size_t>(rank())] = mine;
    gather(reinterpret_cast<std::byte*>(all.data()), sizeof(T));
    return all;
  }
  /// Rank 0's text, to all.
  std::string agree_text(const std::string& mine);
  /// The sum of all ranks' numbers, in the order of ranks, and the least of them.
  double sum_of(double mine);
  double least_of(double mine);
  /// Whether a signal has asked any rank for an end, as far as rank 0 knows: the same on all ranks.
  bool agree_interrupted();
  /// Refuses values that differ, by name.
  /// errors   kind input on rank 0, Ended on others
  void require_equal(const std::string& name, const std::string& value);

  /// Waits until all ranks have done their work.
  void finish();
  /// Reports to the others why this rank cannot go on; false: the run had ended before.
  bool leave(const Error& error);

 private:
  struct Peer {
    int rank = 0;
    std::string name;  // for people
    Socket socket;
    std::string in;        // bytes of a frame that has not come whole
    double last_word = 0;  // when
    bool done = false;
  };
  /// Bytes that go to the next rank while others come from the one before.
  struct Flow {
    size_t in = 0, out = 0;  // bytes
    /// Where the next bytes go, after `received` of them; then what becomes of n that came.
    std::function<std::span<std::byte>(size_t received)> place = {};
    std::function<void(size_t n)> took = {};
    /// Those that may go now, after `sent` of them.
    std::function<std::span<const std::byte>(size_t sent)> ready = {};
  };

  void join(const Facts& facts);
  void receive_ranks(const Facts& facts);
  void visit_rank0(const Facts& facts);
  void link_ring(const Welcome& welcome, const Socket& listener);
  void watch();
  /// What a peer has sent; false: its connection has ended.
  bool read(Peer& peer);
  void take(Peer& peer, FrameType type, const std::string& body);
  /// The run ends: the first reason counts, and wakes all that wait for numbers.
  void fail(const Error& error);
  void send_all(const std::string& bytes);
  void run_flow(const Flow& flow);
  [[noreturn]] void throw_failure();
  bool all_done() const;
  void stop();

  Place place_;
  Events events_;
  std::string run_;
  int local_size_ = 1, local_rank_ = 0;
  std::vector<Peer> peers_;  // of rank 0 all others, of another rank 0
  Socket next_, before_;     // in the ring
  std::thread watcher_;
  mutable std::mutex mutex_;         // of what follows, and of sending to peers
  std::condition_variable changed_;  // a failure, or another that is done
  std::optional<Error> failure_;
  bool by_rank0_ = false;
  double failed_at_ = 0;
  bool finished_ = false, leaving_ = false;
  std::atomic<bool> failed_ = false, stopping_ = false, interrupt_asked_ = false;
};

}  // namespace tandem::ranks
