// SPDX-License-Identifier: Apache-2.0
// A list of types and the one bridge from a run-time value to a compile-time type.
#pragma once

#include <utility>

namespace sluice {

template <class... Ts>
struct TypeList {
  static constexpr auto kSize = sizeof...(Ts);
  // Calls f.template operator()<T>() for the first T with T::kId == id; false when none has it.
  template <class Id, class F>
  static constexpr bool visit(Id id, F&& f) {
    return ((Ts::kId == id ? (f.template operator()<Ts>(), true) : false) || ...);
  }
  // Calls f for every type, in order.
  template <class F>
  static constexpr void for_each(F&& f) {
    (f.template operator()<Ts>(), ...);
  }
};

}  // namespace sluice
