import { showParts } from "./server.js";

showParts();
