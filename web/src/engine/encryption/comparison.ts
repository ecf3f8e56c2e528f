/** The code that two users compare to verify their keys. */

import type { Code } from "../api";
import { concat, fromHex, hex, utf8 } from "../bytes";

/** Iterated hashing makes it expensive to search for keys with the same code. */
const ROUNDS = 5_200;
const LABEL = utf8("Conclave comparison code 1");
const FINGERPRINT_BYTES = 32;

/** Returns the code of two fingerprints, in either order. Throws RangeError for an invalid fingerprint. */
export async function comparisonCode(one: string, other: string): Promise<Code> {
  const pair = [one.toLowerCase(), other.toLowerCase()].sort().map((each) => fromHex(each)) as [Uint8Array, Uint8Array];
  if (pair.some((each) => each.length !== FINGERPRINT_BYTES)) throw new RangeError("a fingerprint has 64 hexadecimal digits");
  let value = concat(LABEL, ...pair);
  for (let round = 0; round < ROUNDS; round++) {
    value = new Uint8Array(await crypto.subtle.digest("SHA-512", concat(value, ...pair)));
  }
  const digits = (BigInt(`0x${hex(value.subarray(0, 32))}`) % 10n ** 30n).toString().padStart(30, "0");
  return {
    digits: digits.match(/.{5}/g)!,
    words: Array.from(value.subarray(32, 44), (each) => WORDS[each]!),
  };
}

/** 256 words, one for each byte, the same as in the terminal chat. */
const WORDS: readonly string[] = `
acid acorn actor agent alarm album alley amber anchor angle ankle apple apron arch arena arrow atlas attic autumn
award bacon badge baker balcony bamboo banana banjo barn basin basket beach beard beaver bell bench berry bishop
blanket blossom boat bonus book border bottle bowl branch bread brick bridge bronze brush bucket buffalo bullet
butter button cabin cable cactus camel camera canal candle canyon carbon carpet carrot castle cattle cave cedar
cellar cement chair chalk cheese cherry chess chimney circus citrus clay cliff clock cloud clover coach coat cobra
cocoa coffee comet copper coral corner cotton cousin coyote crab cradle crane crater cricket crown crystal curtain
dagger dairy dancer desert diamond dinner doctor dolphin donkey dragon drawer drum eagle earth easel echo eclipse
elbow elephant ember engine fabric falcon farmer feather fence fiddle finger flag flame flute forest fossil fountain
fox galaxy garden garlic ginger giraffe glacier glove goat gravel guitar hammer harbor hazel helmet hermit honey
horse hotel hunter igloo insect iron island ivory jacket jaguar jelly jungle kettle kitchen kitten ladder lagoon
lantern laser lemon leopard library lion lizard lobster magnet mango maple marble meadow medal melon mirror monkey
mosaic motor mountain museum mustard napkin needle nickel noodle oasis ocean olive onion orange orbit orchid otter
oyster paddle palace panda paper parrot pebble pencil pepper piano pigeon pillow pilot pine planet plum pocket pony
potato prince pumpkin puzzle pyramid rabbit radio raven ribbon river robot rocket rose saddle salmon sandal saturn
scissors shadow shovel silver singer spider spoon squirrel statue summer sunset temple tiger
`
  .trim()
  .split(/\s+/);
