#include "gpu/device_buffer.h"
#include "kernels/eight_bit_case.h"
#include "kernels/page_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Runs work as a graph of one node.
template <class Work>
void run_in_graph(const Work& work) {
  const cuda::Graph graph(queue(), work);
  CHECK(graph.nodes() == 1);
  graph.launch(queue());
}

}  // namespace

TEST_SUITE("gpu/kernels/page") {
  TEST_CASE("copy_page copies what the CPU copies") {
    for (PoolCase c : pool_cases()) {
      CAPTURE(c.row_bytes);
      const DeviceBuffer k(c.k), v(c.v);
      CopyPageParams p{.pools = c.pools(k.raw(), v.raw()), .from = 4, .to = 2};
      run_in_graph([&] { cuda_table().copy_page(p, queue().stream()); });
      p.pools = c.pools();
      copy_page_cpu(p, {0, 2 * c.n_layers});
      CHECK(k.vector<unsigned char>() == c.k);
      CHECK(v.vector<unsigned char>() == c.v);
    }
  }

  TEST_CASE("rows become narrow and wide as on the CPU, byte for byte") {
    for (EightBitCase c : eight_bit_cases()) {
      CAPTURE(c.d);
      CAPTURE(dtype_name(c.dtype));
      const DeviceBuffer wide(c.wide), rows(c.rows), scales(c.scales), again(c.wide);
      EightBitRowsParams p = c.params();
      p.rows = rows.as<int8_t>();
      p.scales = scales.as<float>();
      p.wide = wide.raw();
      run_in_graph([&] { cuda_table().narrow_rows(p, queue().stream()); });
      narrow_rows_scalar(c.params(), {0, c.n_rows});
      EightBitCase got = c;
      got.rows = rows.vector<int8_t>();
      got.scales = scales.vector<float>();
      CHECK(got.same_narrow(c));
      p.wide = again.raw();
      run_in_graph([&] { cuda_table().widen_eight_bit_rows(p, queue().stream()); });
      got.wide = again.vector<std::byte>();
      widen_eight_bit_rows_scalar(c.params(), {0, c.n_rows});
      int wrong = 0;
      for (int row = 0; row < c.n_rows; ++row)
        for (int i = 0; i < c.d; ++i)
          wrong +=
              c.is_finite(row) ? got.get(row, i) != c.get(row, i) : !std::isnan(got.get(row, i));
      CHECK(wrong == 0);
    }
  }

  TEST_CASE("move_tokens moves what the CPU moves, one token after another") {
    const MovesCase moves = moves_case();
    const DeviceBuffer from(moves.from), to(moves.to);
    for (PoolCase c : pool_cases()) {
      CAPTURE(c.row_bytes);
      const DeviceBuffer k(c.k), v(c.v);
      const auto n = static_cast<int>(moves.from.size());
      const MoveTokensParams p{c.pools(k.raw(), v.raw()), from.as<int32_t>(), to.as<int32_t>(), n};
      run_in_graph([&] { cuda_table().move_tokens(p, queue().stream()); });
      move_tokens_cpu({c.pools(), moves.from.data(), moves.to.data(), n}, {0, 2 * c.n_layers});
      CHECK(k.vector<unsigned char>() == c.k);
      CHECK(v.vector<unsigned char>() == c.v);
    }
  }

  TEST_CASE("path_moves closes the gaps of a path, and leaves nodes without keys") {
    const PathCase c;
    const DeviceBuffer table(c.table), slot(c.slot), position(c.position), accepted(c.n_accepted),
        path(c.path), from(c.from.size() * sizeof(int32_t)), to(c.to.size() * sizeof(int32_t));
    PathMovesParams p = c.params();
    p.from_token = from.as<int32_t>();
    p.to_token = to.as<int32_t>();
    p.path = path.as<int32_t>();
    p.n_accepted = accepted.as<int32_t>();
    p.position = position.as<int32_t>();
    p.page_table = table.as<int32_t>();
    p.slot = slot.as<int32_t>();
    cuda_table().path_moves(p, queue().stream());
    CHECK(from.vector<int32_t>() == c.from);
    CHECK(to.vector<int32_t>() == c.to);
  }

  TEST_CASE("a round leaves how it ended, and one that was laid out before catches up") {
    const AheadCase c;
    const DeviceBuffer tokens(c.tokens), path(c.path), accepted(c.n_accepted), bonus(c.bonus),
        before(c.newest), kept(std::vector<int32_t>(3, 99)), newest(std::vector<int32_t>(9, 99)),
        turn(std::vector<int32_t>{1});
    const RoundEnds ends{kept.as<int32_t>(), newest.as<int32_t>(), turn.as<int32_t>()};
    const LeaveEndsParams leave{ends,
                                before.as<int32_t>(),
                                tokens.as<int32_t>(),
                                path.as<int32_t>(),
                                accepted.as<int32_t>(),
                                bonus.as<int32_t>(),
                                3,
                                4};
    run_in_graph([&] { cuda_table().leave_ends(leave, queue().stream()); });
    CHECK(kept.vector<int32_t>() == c.kept);
    CHECK(newest.vector<int32_t>() == c.newest_after);
    CHECK(turn.vector<int32_t>() == std::vector<int32_t>{0});
    struct Buffers {
      DeviceBuffer tentative, base, pos, page, in_page;
    };
    const DeviceBuffer prior(c.prior), next(c.next_tokens), next_newest(c.next_newest),
        position(c.position), unread(c.unread), slot(c.slot), table(c.table);
    // The first step has no near keys.
    const DeviceBuffer near_page(AheadCase::near(c.steps[1].page)),
        near_table(AheadCase::near(c.table));
    std::vector<Buffers> buffers;
    std::vector<StepRows> rows;
    for (const AheadCase::Step& s : c.steps) {
      const Buffers& b = buffers.emplace_back(
          Buffers{DeviceBuffer(std::vector<int32_t>(3, 1)), DeviceBuffer(s.base),
                  DeviceBuffer(s.pos), DeviceBuffer(s.page), DeviceBuffer(s.in_page)});
      rows.push_back({b.base.as<int32_t>(), b.pos.as<int32_t>(), b.page.as<int32_t>(),
                      b.in_page.as<int32_t>(),
                      s.tentative.empty() ? nullptr : b.tentative.as<int32_t>(), slot.as<int32_t>(),
                      table.as<int32_t>(), s.rows_each, 3});
    }
    rows[1].others[1] = {near_page.as<int32_t>(), near_table.as<int32_t>()};
    const DeviceBuffer steps(rows);
    const CatchUpParams p{.ends = ends,
                          .prior = prior.as<int32_t>(),
                          .tokens = next.as<int32_t>(),
                          .newest = next_newest.as<int32_t>(),
                          .position = position.as<int32_t>(),
                          .unread = unread.as<int32_t>(),
                          .steps = steps.as<StepRows>(),
                          .n_seqs = 3,
                          .n_nodes = 2,
                          .n_unread = 2,
                          .n_known_ids = c.n_known_few,
                          .n_steps = 2};
    run_in_graph([&] { cuda_table().catch_up(p, queue().stream()); });
    CHECK(next.vector<int32_t>() == c.next_want);
    CHECK(next_newest.vector<int32_t>() == c.next_newest_want);
    CHECK(position.vector<int32_t>() == c.position_want);
    CHECK(unread.vector<int32_t>() == c.unread_want);
    for (size_t i = 0; i < c.steps.size(); ++i) {
      CAPTURE(i);
      CHECK(buffers[i].base.vector<int32_t>() == c.steps[i].base_want);
      CHECK(buffers[i].pos.vector<int32_t>() == c.steps[i].pos_want);
      CHECK(buffers[i].page.vector<int32_t>() == c.steps[i].page_want);
      CHECK(buffers[i].in_page.vector<int32_t>() == c.steps[i].in_page_want);
    }
    CHECK(near_page.vector<int32_t>() == AheadCase::near(c.steps[1].page_want));
  }

  TEST_CASE("set_pages writes the cells that it is told, and no other") {
    for (const int n : {1, 255, 256, 1000}) {
      CAPTURE(n);
      const ChangesCase c(n);
      const DeviceBuffer table(c.table), changes(c.changes);
      const SetPagesParams p{table.as<int32_t>(), changes.as<PageChange>(), n};
      run_in_graph([&] { cuda_table().set_pages(p, queue().stream()); });
      CHECK(table.vector<int32_t>() == c.changed);
    }
  }
}

TEST_SUITE("gpu/kernels/slot_ids") {
  TEST_CASE("ids go to their slots and come back, those from the limit on as 0, as on the CPU") {
    for (const int n : {1, 128, 300}) {
      CAPTURE(n);
      std::vector<int32_t> last(400, -7), slot, ids;
      for (int i = 0; i < n; ++i) {
        slot.push_back(i * 7 % 400);  // each once
        ids.push_back(i * 11);
      }
      const DeviceBuffer d_last(last), d_slot(slot), d_ids(ids);
      SlotIdsParams on_cpu{last.data(), slot.data(), ids.data(), n};
      SlotIdsParams on_gpu{d_last.as<int32_t>(), d_slot.as<int32_t>(), d_ids.as<int32_t>(), n};
      run_in_graph([&] { cuda_table().store_slot_ids(on_gpu, queue().stream()); });
      store_slot_ids_cpu(on_cpu, {0, n});
      CHECK(d_last.vector<int32_t>() == last);
      for (const int32_t limit : {0, 900, 11, 1}) {
        on_cpu.limit = on_gpu.limit = limit;
        run_in_graph([&] { cuda_table().load_slot_ids(on_gpu, queue().stream()); });
        load_slot_ids_cpu(on_cpu, {0, n});
        CHECK(d_ids.vector<int32_t>() == ids);
      }
    }
  }
}

TEST_SUITE("gpu/kernels/widen_rows") {
  TEST_CASE("rows over another vocabulary, as on the CPU") {
    for (const int n_rows : {1, 7, 70000})
      for (const auto& [from, to] : {std::pair{3, 5}, {5, 3}, {4, 4}, {255, 513}, {1000, 1024}}) {
        if (n_rows > 100 && to > 100) continue;
        CAPTURE(n_rows);
        CAPTURE(to);
        std::vector<float> in, want(static_cast<size_t>(n_rows * to));
        for (int i = 0; i < n_rows * from; ++i) in.push_back(static_cast<float>(i));
        const DeviceBuffer d_in(in), out(want.size() * sizeof(float));
        const WidenRowsParams p{out.as<float>(), d_in.as<float>(), n_rows, from, to};
        require_same_in_graph(out, [&] { cuda_table().widen_rows(p, queue().stream()); });
        widen_rows_cpu({want.data(), in.data(), n_rows, from, to}, {0, n_rows});
        CHECK(out.vector<float>() == want);
      }
  }
}
