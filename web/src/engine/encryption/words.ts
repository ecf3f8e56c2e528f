/** 256 words, one for each byte, the same as in the terminal chat. */
export const WORDS: readonly string[] = `
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
