#include "tensor/courier.h"

#include "base/check.h"

namespace tandem {
namespace {

std::string item_name(const Courier::Spec& s) { return s.name + "/transfers"; }

/// Of the parcels' places on the device.
size_t parcel_bytes(const Courier::Spec& s) {
  return (s.own_places ? static_cast<size_t>(s.turns) : 1) * s.in_bytes;
}

}  // namespace

void Courier::plan(const Spec& spec, Device device, MemoryPlan& plan) {
  const auto turns = static_cast<size_t>(spec.turns);
  plan.add(item_name(spec), parcel_bytes(spec) + spec.out_bytes, device);
  if (device.kind == Device::Kind::cuda)
    plan.add(spec.name + "/staging", turns * (spec.in_bytes + spec.out_bytes));
}

Courier::Courier(Spec spec, Arena& arena, const Exec& exec)
    : spec_(std::move(spec)), exec_(exec), turns_(static_cast<size_t>(spec_.turns)) {
  auto* const device = static_cast<std::byte*>(arena.take(item_name(spec_)));
  results_ = device + parcel_bytes(spec_);
  for (size_t i = 0; i < turns_.size(); ++i) {
    Turn& t = turns_[i];
    std::byte* const place = device + (spec_.own_places ? i * spec_.in_bytes : 0);
    std::byte* host = place;
    if (exec_.on_gpu()) {
      t.pinned = std::make_unique<cuda::PinnedBuffer>(spec_.in_bytes + spec_.out_bytes);
      t.sent = std::make_unique<cuda::Event>();
      t.fetched = std::make_unique<cuda::Event>();
      host = t.pinned->data();
    }
    t.outbox = Outbox(host, place, spec_.in_bytes);
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
  TANDEM_CHECK(bytes <= spec_.out_bytes, "{} bytes of results, planned for {}", bytes,
               spec_.out_bytes);
  const size_t turn = next_out_;
  next_out_ = (next_out_ + 1) % turns_.size();
  if (exec_.on_gpu()) {
    exec_.queue->copy_out(turns_[turn].pinned->data() + spec_.in_bytes, results_, bytes);
    turns_[turn].fetched->record(*exec_.queue);
  }
  return static_cast<int>(turn);
}

std::byte* Courier::wait(int receipt) {
  if (!exec_.on_gpu()) return results_;
  const Turn& t = turns_[static_cast<size_t>(receipt)];
  t.fetched->wait();
  return t.pinned->data() + spec_.in_bytes;
}

}  // namespace tandem
