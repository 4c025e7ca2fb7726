#include "tensor/courier.h"

#include "base/check.h"

namespace tandem {
namespace {

std::string parcels(const Courier::Spec& s) { return s.name + "/parcels"; }
std::string results_of(const Courier::Spec& s) { return s.name + "/results"; }

size_t places(const Courier::Spec& s) { return s.own_places ? static_cast<size_t>(s.turns) : 1; }

}  // namespace

void Courier::plan(const Spec& spec, Device device, MemoryPlan& plan) {
  const auto turns = static_cast<size_t>(spec.turns);
  plan.add(parcels(spec), places(spec) * spec.in_bytes, device);
  if (spec.out_bytes > 0) plan.add(results_of(spec), spec.out_bytes, device);
  if (device.kind == Device::Kind::cuda)
    plan.add(spec.name + "/staging", turns * (spec.in_bytes + spec.out_bytes));
}

Courier::Courier(Spec spec, Arena& arena, const Exec& exec)
    : spec_(std::move(spec)), exec_(exec), turns_(static_cast<size_t>(spec_.turns)) {
  auto* const device = static_cast<std::byte*>(arena.take(parcels(spec_)));
  if (spec_.out_bytes > 0) results_ = static_cast<std::byte*>(arena.take(results_of(spec_)));
  for (size_t i = 0; i < turns_.size(); ++i) {
    Turn& t = turns_[i];
    std::byte* const place = device + (spec_.own_places ? i * spec_.in_bytes : 0);
    std::byte* host = place;
    if (exec_.on_gpu()) {
      t.in = std::make_unique<cuda::PinnedBuffer>(spec_.in_bytes);
      t.sent = std::make_unique<cuda::Event>();
      host = t.in->data();
      if (spec_.out_bytes > 0) {
        t.out = std::make_unique<cuda::PinnedBuffer>(spec_.out_bytes);
        t.fetched = std::make_unique<cuda::Event>();
      }
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
    exec_.queue->copy_out(turns_[turn].out->data(), results_, bytes);
    turns_[turn].fetched->record(*exec_.queue);
  }
  return static_cast<int>(turn);
}

const std::byte* Courier::wait(int receipt) {
  if (!exec_.on_gpu()) return results_;
  const Turn& t = turns_[static_cast<size_t>(receipt)];
  t.fetched->wait();
  return t.out->data();
}

}  // namespace tandem
