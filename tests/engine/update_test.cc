// SPDX-License-Identifier: Apache-2.0
// Updates of several calls: where they begin, where they end, and what they end without.
#include "tests/engine/trainer.h"

namespace sluice::engine {
namespace {

// Tensors that are dropped with the weights that they were for are not taken for what is in use.
TEST(Updates, EndWhereTheirTensorsAreDropped) {
  Trainer trainer(bundled());
  const NamedTensors zeros{{trainer.tensors[0].first, trainer.tensors[0].second.clone().zero()}};
  for (const bool dummies : {false, true}) {
    const auto engine = start(dummies ? trainer.dummies : trainer.loaded);
    const Answer before = ask(*engine);
    const auto release = [&] {
      engine->release_memory({.weights = true});
      engine->resume_memory({.weights = true});
    };
    expect_refused(ErrorCode::invalid_argument, {"no update has begun; begin one first"},
                   [&] { engine->end_update(trainer.counted()); });
    engine->begin_update();
    trainer.send(*engine, zeros);
    release();
    expect_refused(ErrorCode::invalid_argument, {"no update has begun: ", "dropped when the weights were released"},
                   [&] { engine->end_update(trainer.counted()); });
    expect_same(ask(*engine), before);
    engine->begin_update();
    trainer.send(*engine, zeros);
    engine->reload([&] { return trainer.loaded; }, {});
    expect_refused(ErrorCode::invalid_argument, {"no update has begun: ", "dropped when a folder's weights"},
                   [&] { engine->end_update(trainer.counted()); });
    // What nothing came for goes on.
    engine->begin_update();
    release();
    trainer.send(*engine, zeros);
    EXPECT_EQ(trainer.replaced, 0);
    engine->release_memory({.kv_cache = true});
    engine->resume_memory({.kv_cache = true});
    engine->end_update(trainer.counted());
    EXPECT_EQ(std::exchange(trainer.replaced, 0), 1);
    EXPECT_EQ(io::checksum(engine->weights().tensor(zeros[0].first)), io::checksum(zeros[0].second));
  }
}

TEST(Updates, BeginOnce) {
  Trainer trainer(bundled());
  const NamedTensors zeros{{trainer.tensors[0].first, trainer.tensors[0].second.clone().zero()}};
  const auto engine = start(trainer.loaded);
  engine->begin_update();
  trainer.send(*engine, zeros);
  expect_refused(ErrorCode::invalid_argument, {"an update has begun already; end it first"},
                 [&] { engine->begin_update(); });
  engine->end_update(trainer.counted());
  EXPECT_EQ(trainer.replaced, 1);
  EXPECT_EQ(io::checksum(engine->weights().tensor(zeros[0].first)), io::checksum(zeros[0].second));
  engine->begin_update();
  expect_refused(ErrorCode::invalid_argument, {"no tensor that the model uses has come"},
                 [&] { engine->end_update(trainer.counted()); });
  EXPECT_EQ(trainer.replaced, 1);
}

}  // namespace
}  // namespace sluice::engine
