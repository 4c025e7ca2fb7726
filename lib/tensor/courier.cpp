#include "tensor/courier.h"

#include "base/check.h"

namespace tandem {
namespace {

std::string item_name(const Courier::Spec& s) { return s.name + "/transfers"; }

/// Of all places on the device.
size_t place_bytes(const Courier::Spec& s) {
  return (s.own_places ? static_cast<size_t>(s.turns) : 1) * s.turn_bytes();
}

}  // namespace

void Courier::plan(const Spec& spec, Device device, MemoryPlan& plan) {
  const auto turns = static_cast<size_t>(spec.turns);
  plan.add(item_name(spec), place_bytes(spec), device);
  if (device.kind == Device::Kind::cuda)
    plan.add(spec.name + "/staging", turns * spec.turn_bytes());
}

Courier::Courier(Spec spec, Arena& arena, const Exec& exec)
    : spec_(std::move(spec)), exec_(exec), turns_(static_cast<size_t>(spec_.turns)) {
  auto* const device = static_cast<std::byte*>(arena.take(item_name(spec_)));
  results_ = device + spec_.in_bytes;
  if (exec_.on_gpu()) pinned_ = std::make_unique<cuda::PinnedBuffer>(turns_.size() * turn_step());
  for (size_t i = 0; i < turns_.size(); ++i) {
    Turn& t = turns_[i];
    std::byte* const place = device + (spec_.own_places ? i * turn_step() : 0);
    t.host = place;
    if (exec_.on_gpu()) {
      t.host = pinned_->data() + i * turn_step();
      t.sent = std::make_unique<cuda::Event>();
      t.fetched = std::make_unique<cuda::Event>();
    }
    t.outbox = Outbox(t.host, place, spec_.in_bytes);
  }
}

Outbox& Courier::open() {
  open_ = next_in_;
  next_in_ = (next_in_ + 1) % turns_.size();
  Turn& t = turns_[open_];
  if (t.sent) t.sent->wait();
  t.outbox.clear();
  return t.outbox;
}

void Courier::send() {
  Turn& t = turns_[open_];
  if (!exec_.on_gpu() || t.outbox.taken() == 0) return;
  const Outbox::Part all = t.outbox.all();
  exec_.queue->copy_in(all.device, all.host, t.outbox.taken());
  t.sent->record(*exec_.queue);
}

int Courier::fetch(size_t bytes) {
  TANDEM_CHECK(bytes <= spec_.out_bytes, "{} bytes of results exceed the planned {}", bytes,
               spec_.out_bytes);
  const size_t turn = next_out_;
  next_out_ = (next_out_ + 1) % turns_.size();
  if (exec_.on_gpu()) {
    exec_.queue->copy_out(turns_[turn].host + spec_.in_bytes, results_, bytes);
    turns_[turn].fetched->record(*exec_.queue);
  }
  return static_cast<int>(turn);
}

std::byte* Courier::wait(int receipt) {
  if (!exec_.on_gpu()) return results_;
  const Turn& t = turns_[static_cast<size_t>(receipt)];
  t.fetched->wait();
  return t.host + spec_.in_bytes;
}

}  // namespace tandem
