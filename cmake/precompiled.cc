// SPDX-License-Identifier: Apache-2.0
// What cmake/Component.cmake precompiles headers for.
int main() { return 0; }
