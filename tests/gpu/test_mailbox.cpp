// Notes between a GPU's queue and the host, whose errors too must leave nothing waiting for ever.
#include <doctest/doctest.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "error_text.h"
#include "gpu/device_buffer.h"
#include "gpu/gpu_lost.h"
#include "kernels/gather/hand_over_lists.h"
#include "ops/mailbox.h"
#include "ops/selection.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr const char* kName = "workspace/mailbox";
constexpr int kNotes = 5;

/// A mailbox, and work of five notes: each sends the device's numbers, and the answer replaces
/// them.
struct Exchange {
  explicit Exchange(size_t n_words)
      : n(n_words),
        arena([] {
          MemoryPlan plan;
          ops::Mailbox::plan(kName, {Device::Kind::cuda, 0}, plan);
          return plan;
        }()),
        mailbox(kName, arena, {&queue()}),
        sent(n * 4),
        answer(n * 4),
        device(n * 4) {}

  void put_work() {
    for (int i = 0; i < kNotes; ++i) {
      const MailboxPart out[] = {{sent.data(), device.raw(), n * 4}};
      const MailboxPart in[] = {{device.raw(), answer.data(), n * 4}};
      mailbox.post(out);
      mailbox.await(in);
    }
  }
  uint32_t* words(cuda::PinnedBuffer& b) { return reinterpret_cast<uint32_t*>(b.data()); }
  /// Answers a note with its numbers plus one; false if they are not `first` and what follows.
  bool reply(uint32_t first) {
    mailbox.receive({});
    bool as_sent = true;
    for (size_t i = 0; i < n; ++i) {
      as_sent = as_sent && words(sent)[i] == first + i;
      words(answer)[i] = words(sent)[i] + 1;
    }
    mailbox.answer();
    return as_sent;
  }
  void begin(uint32_t first) {
    std::vector<uint32_t> all(n);
    std::iota(all.begin(), all.end(), first);
    queue().copy_in(device.raw(), all.data(), n * 4);
  }
  std::vector<uint32_t> end() {
    std::vector<uint32_t> all(n);
    queue().copy_out(all.data(), device.raw(), n * 4);
    queue().wait();
    return all;
  }

  size_t n;
  Arena arena;
  ops::Mailbox mailbox;
  cuda::PinnedBuffer sent, answer;
  DeviceBuffer device;
};

}  // namespace

TEST_SUITE("gpu/ops/mailbox") {
  TEST_CASE(
      "an exception in the midst of a graph: nothing waits, and the next run is as any other") {
    Exchange x(1000);
    const cuda::Graph graph(queue(), [&] { x.put_work(); });
    for (int run = 0; run < 3; ++run)
      for (int answered = 0; answered < kNotes; ++answered) {
        CAPTURE(answered);
        x.begin(10);
        graph.launch(queue());
        try {
          for (int i = 0; i < answered; ++i) REQUIRE(x.reply(10 + static_cast<uint32_t>(i)));
          x.mailbox.receive({});
          throw std::runtime_error("the host's work failed");
        } catch (const std::runtime_error&) {
          x.mailbox.abort();
        }
        CHECK(queue().idle());
        x.begin(100);
        graph.launch(queue());
        for (uint32_t i = 0; i < kNotes; ++i) REQUIRE(x.reply(100 + i));
        CHECK(x.end()[999] == 100 + 999 + kNotes);
      }
  }

  TEST_CASE("an interruption while the host waits for a note") {
    Exchange x(16);
    bool asked = false;
    try {
      // Nothing was posted: it would wait for ever, and the queue is never seen to be done.
      const MailboxPart in[] = {{x.device.raw(), x.answer.data(), 64}};
      const MailboxPart out[] = {{x.sent.data(), x.device.raw(), 64}};
      x.mailbox.post(out);
      x.mailbox.await(in);
      x.mailbox.receive({});
      x.mailbox.receive([&] { return asked = true; });
      FAIL("a second note");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::interrupted);
    }
    CHECK(asked);
    x.mailbox.abort();
    CHECK(queue().idle());
  }

  TEST_CASE("two mailboxes on one queue: what ends the service of one lets work wait for neither") {
    Exchange a(100), b(100);
    const auto put = [](Exchange& x) {
      const MailboxPart out[] = {{x.sent.data(), x.device.raw(), x.n * 4}};
      x.mailbox.post(out);
    };
    const auto take = [](Exchange& x) {
      const MailboxPart in[] = {{x.device.raw(), x.answer.data(), x.n * 4}};
      x.mailbox.await(in);
    };
    const cuda::Graph graph(queue(), [&] {
      for (int i = 0; i < kNotes; ++i) put(a), put(b), take(a), take(b);
    });
    const auto begin = [&](uint32_t first) {
      a.begin(first);
      b.begin(first + 1000);
      graph.launch(queue());
    };
    for (int answered = 0; answered < 2 * kNotes; ++answered) {
      CAPTURE(answered);
      begin(10);
      for (int i = 0; i < answered; ++i)
        REQUIRE((i % 2 == 0 ? a.reply(10 + static_cast<uint32_t>(i / 2))
                            : b.reply(1010 + static_cast<uint32_t>(i / 2))));
      for (Exchange* x : {&a, &b}) x->mailbox.refuse();
      for (Exchange* x : {&a, &b}) x->mailbox.abort();
      CHECK(queue().idle());
      begin(50);
      for (uint32_t i = 0; i < kNotes; ++i) {
        REQUIRE(a.reply(50 + i));
        REQUIRE(b.reply(1050 + i));
      }
      CHECK(a.end()[99] == 50 + 99 + kNotes);
      CHECK(b.end()[99] == 1050 + 99 + kNotes);
    }
  }

  TEST_CASE("a GPU that is lost while the host waits for a note ends the wait") {
    Exchange x(16);
    for (int waits = 0; waits < 3; ++waits) {
      CAPTURE(waits);
      x.begin(10);
      x.put_work();
      REQUIRE(x.reply(10));
      x.mailbox.receive({});
      {
        // No note follows one that has no answer.
        const GpuLost lost(waits);
        const auto wait = [&] { x.mailbox.receive({}); };
        CHECK(kind_of(wait) == ErrorKind::device);
        CHECK(error_text(wait).find("the GPU is lost") != std::string::npos);
        CHECK(hint_text(wait).find("nvidia-smi") != std::string::npos);
        x.mailbox.abort();
      }
      CHECK(queue().idle());
      x.begin(100);
      x.put_work();
      for (uint32_t i = 0; i < kNotes; ++i) REQUIRE(x.reply(100 + i));
      CHECK(x.end()[15] == 100 + 15 + kNotes);
    }
  }

  TEST_CASE("numbers of words of every kind arrive, at any addresses, in a graph and without one") {
    for (const size_t n : {size_t{1}, size_t{3}, size_t{4}, size_t{1023}, size_t{40'001}}) {
      CAPTURE(n);
      Exchange x(n);
      for (int turn = 0; turn < 2; ++turn) {
        x.begin(7);
        x.put_work();
        for (uint32_t i = 0; i < kNotes; ++i) REQUIRE(x.reply(7 + i));
        CHECK(x.end()[n - 1] == 7 + n - 1 + kNotes);
      }
    }
  }

  TEST_CASE("the work waits for a host that takes its time") {
    Exchange x(64);
    x.begin(1);
    x.put_work();
    for (uint32_t i = 0; i < kNotes; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      CHECK(!queue().idle());
      REQUIRE(x.reply(1 + i));
    }
    CHECK(x.end()[0] == 1 + kNotes);
  }

  TEST_CASE("lists are divided by a share, the last ids to the host") {
    constexpr int kLists = 6, kStride = 700;
    const std::vector<int32_t> count = {0, 1, 2, 255, 699, 700};
    std::vector<int32_t> ids(kLists * kStride);
    std::iota(ids.begin(), ids.end(), 0);
    const DeviceBuffer device_ids(ids), device_count(count), kept(kLists * 4);
    cuda::PinnedBuffer host_ids(ids.size() * 4), host_count(kLists * 4);
    for (const float share : {0.0f, 0.3f, 0.5f, 1.0f}) {
      CAPTURE(share);
      std::fill_n(host_ids.data(), host_ids.size(), std::byte{0xee});
      ops::hand_over_lists({.host_ids = reinterpret_cast<int32_t*>(host_ids.data()),
                            .host_count = reinterpret_cast<int32_t*>(host_count.data()),
                            .kept = static_cast<int32_t*>(kept.raw()),
                            .ids = static_cast<const int32_t*>(device_ids.raw()),
                            .count = static_cast<const int32_t*>(device_count.raw()),
                            .stride = kStride,
                            .n_lists = kLists,
                            .host_share = share},
                           queue().stream());
      std::vector<int32_t> left(kLists);
      queue().copy_out(left.data(), kept.raw(), kLists * 4);
      queue().wait();
      const auto* const got = reinterpret_cast<const int32_t*>(host_ids.data());
      const auto* const n = reinterpret_cast<const int32_t*>(host_count.data());
      for (size_t i = 0; i < kLists; ++i) {
        CAPTURE(i);
        CHECK(left[i] + n[i] == count[i]);
        CHECK(std::abs(static_cast<float>(n[i]) - share * static_cast<float>(count[i])) <= 0.5f);
        for (int k = 0; k < n[i]; ++k)
          REQUIRE(got[i * kStride + static_cast<size_t>(k)] ==
                  static_cast<int32_t>(i) * kStride + left[i] + k);
      }
    }
  }
}
